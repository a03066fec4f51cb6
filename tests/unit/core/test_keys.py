"""Which key a call needs: rules are checked where they are declared, and make a key or an error."""

from __future__ import annotations

import inspect
from importlib.util import find_spec
from typing import Any

import pytest
from celery import Celery
from kombu.utils.json import dumps, loads

from celery_lease import LeasedTask, ToolContext, settings
from celery_lease.brokers.redis.exclusive import divided
from celery_lease.core.keys import (
    HEADER,
    LONGEST,
    Exclusive,
    KeyAnswer,
    KeyFault,
    OnBusy,
    Verdict,
    check,
    key_of,
)
from celery_lease.core.policy import LeasePolicy
from celery_lease.settings import LeaseConfigError
from celery_lease.worker import compat
from celery_lease.worker.keys import KeyFinder
from celery_lease.worker.policies import Policies

Call = tuple[tuple[Any, ...], dict[str, Any]]


def load(customer_id: int, region: str = "eu", *parts: str, **more: Any) -> None:
    """Be a task's function."""


SIGNATURE = inspect.signature(load)


@pytest.mark.parametrize(
    ("rule", "call", "key"),
    [
        ("import:{customer_id}", ((7,), {}), "import:7"),
        ("import:{customer_id}", ((), {"customer_id": 7}), "import:7"),
        ("{region}/{customer_id:03d}", ((7,), {}), "eu/007"),
        ("{region!r}", ((7, "us"), {}), "'us'"),
        ("{parts[0]}", ((7, "us", "a"), {}), "a"),
        ("{kind}", ((7,), {"kind": "full"}), "full"),
        ("nightly", ((7,), {}), "nightly"),
        ("{{{customer_id}}}", ((7,), {}), "{7}"),
        (lambda customer_id: f"c{customer_id}", ((7,), {}), "c7"),
        (
            lambda region, **rest: f"{region}{sorted(rest)}",
            ((7,), {}),
            "eu['customer_id', 'parts']",
        ),
        (lambda kind: kind, ((7,), {"kind": "full"}), "full"),
        (lambda: None, ((7,), {}), ""),
    ],
)
def test_a_rule_makes_the_key_of_a_call(rule: Any, call: Call, key: str) -> None:
    """Of its arguments by their names, defaults included."""
    check(rule, SIGNATURE)
    assert key_of(rule, SIGNATURE, *call) == key


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("{}", "without a name"),
        ("{0}", "without a name"),
        ("{customer_id", "is no template"),
        ("{customer_id:{width}}", "placeholder within a placeholder"),
        (lambda customer_id, /: customer_id, "takes no name"),
        (min, "whose parameters cannot be read"),
    ],
)
def test_a_rule_that_is_none_is_refused(rule: Any, said: str) -> None:
    """Where it is declared."""
    with pytest.raises(KeyFault, match=said):
        check(rule, SIGNATURE)


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("{parts[3]}", "IndexError"),
        ("{missing}", "KeyError"),
        ("{region:d}", "ValueError"),
        (lambda: 7, "made int instead of text"),
        (lambda: "", "made a key of 0 characters"),
        (lambda: "x" * (LONGEST + 1), "it must have 1 to 500"),
        (lambda: "\udc80", "cannot be printed"),
        (lambda: "a\nb", "cannot be printed"),
        (lambda: 1 / 0, "ZeroDivisionError"),
    ],
)
def test_what_makes_no_key_is_refused(rule: Any, said: str) -> None:
    """With the reason in the text."""
    with pytest.raises(KeyFault, match=said):
        key_of(rule, SIGNATURE, (7,), {})


def test_arguments_that_are_none_are_no_matter_of_the_key() -> None:
    """The call is wrong, whatever its key."""
    with pytest.raises(TypeError):
        key_of("{customer_id}", SIGNATURE, (), {})


# ------------------------------------------------------------------------------ declaration, call


@pytest.fixture
def app() -> Celery:
    """An app whose messages go to a list in memory."""
    return Celery("keyed", broker="memory://", backend="cache+memory://", set_as_current=False)


@pytest.fixture
def sent(app: Celery, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Headers of the messages that were sent."""
    found: list[dict[str, Any]] = []

    def send(_: Any, name: str, message: Any, **options: Any) -> None:  # noqa: ARG001
        found.append({**message.headers, **(options.get("headers") or {})})

    monkeypatch.setattr(app.amqp, "send_task_message", send)
    return found


def declared(app: Celery, **options: Any) -> Any:
    """Return a task with a context and two parameters."""

    @app.task(base=LeasedTask, name="imports", **options)
    def imports(customer_id: int, full: bool = False, *, context: ToolContext) -> None:
        del customer_id, full, context

    return imports


@pytest.mark.parametrize(
    "rule", ["x:{customer}", "{context}", "{self}", lambda customer: f"x:{customer}"]
)
def test_a_rule_is_checked_at_the_declaration(app: Celery, rule: Any) -> None:
    """A name that no caller gives is refused; the context and the task itself are such."""
    with pytest.raises(LeaseConfigError, match="no parameter of the task") as caught:
        declared(app, lease_key=rule).name  # noqa: B018
    assert "it has: customer_id, full" in str(caught.value)


def test_a_template_of_an_annotation_is_checked_too(app: Celery) -> None:
    """By ``task_annotations``, which come with the app."""
    app.conf.task_annotations = {"imports": {"lease_key": "{nobody}"}}
    with pytest.raises(LeaseConfigError, match="nobody"):
        declared(app).name  # noqa: B018


def test_the_sender_puts_the_key_on_the_message(app: Celery, sent: list[dict[str, Any]]) -> None:
    """Of the task's rule, or of the call's, which may also be that there is none."""
    task = declared(app, lease_key="import:{customer_id}")
    task.delay(7)
    task.apply_async((7,), lease_key="all")
    task.apply_async((7,), lease_key=lambda customer_id, full: f"{customer_id}:{full}")
    task.apply_async((7,), lease_key=None)
    assert [each[HEADER] for each in sent] == ["import:7", "all", "7:False", ""]


def test_a_retry_keeps_the_key_of_the_call_that_it_repeats(
    app: Celery, sent: list[dict[str, Any]]
) -> None:
    """Also with other arguments: a header that is there stays."""
    task = declared(app, lease_key="import:{customer_id}")
    task.apply_async((8,), headers={HEADER: "import:7"})
    assert sent[0][HEADER] == "import:7"


def test_limit_and_what_to_do_travel_with_the_call(app: Celery, sent: list[dict[str, Any]]) -> None:
    """The key itself does so by its own header alone."""
    task = declared(app, lease_key="import:{customer_id}")
    task.apply_async((7,), lease_key="x", lease_key_limit=2, lease_on_busy="drop")
    assert sent[0]["lease"] == {"lease_key_limit": 2, "lease_on_busy": "drop"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"lease_key": "{nobody}"}, "no parameter of the task"),
        ({"lease_key": 7}, "must be None, a callable, or a template"),
        ({"lease_key": "{"}, "must be None, a callable, or a template"),
        ({"lease_key": lambda customer_id: customer_id}, "made int"),
        ({"lease_key_limit": 0}, "must be a whole number from 1 to 1000"),
        ({"lease_on_busy": "skip"}, "must be one of 'wait', 'drop', 'replace'"),
    ],
)
def test_a_wrong_call_sends_nothing(
    app: Celery, sent: list[dict[str, Any]], options: dict[str, Any], said: str
) -> None:
    """And says what is wrong."""
    with pytest.raises(LeaseConfigError, match=said):
        declared(app).apply_async(kwargs={"customer_id": 7}, **options)
    assert not sent


def test_one_message_for_many_calls_has_no_key(app: Celery, sent: list[dict[str, Any]]) -> None:
    """It is refused rather than run without; the call may say that this is meant."""
    task = declared(app, lease_key="import:{customer_id}")
    with pytest.raises(LeaseConfigError, match="map, starmap or chunks"):
        task.map([7, 8]).apply_async()
    task.map([7, 8]).apply_async(lease_key="")  # a signature drops None
    assert [each[HEADER] for each in sent] == [""]


def test_a_broker_without_keys_is_refused_at_the_call_and_at_the_start() -> None:
    """Naming those that have keys."""
    app = Celery("keyed", broker="amqp://", set_as_current=False)
    task = declared(app, lease_key="import:{customer_id}")
    with pytest.raises(LeaseConfigError, match="'amqp' has no exclusive keys") as caught:
        task.delay(7)
    brokers = "memory, pgmq, redis" if find_spec("psycopg") else "memory, redis"
    assert f"brokers that have: {brokers};" in str(caught.value)
    with pytest.raises(LeaseConfigError, match="'amqp' has no exclusive keys"):
        Policies(app, settings.load(app.conf)).check("amqp")


# ------------------------------------------------------------------------------------ in the worker


class Message:
    """A task's message as kombu has it."""

    accept = None

    def __init__(self, *args: Any, **headers: Any) -> None:
        self.headers = {"task": "imports", "id": "i", **headers}
        self.payload = loads(dumps([args, {}, {}]))


def found(app: Celery, message: Message, **policy: Any) -> Exclusive | None:
    """Return what a worker finds."""
    rule = LeasePolicy(key="import:{customer_id}", **policy)
    return KeyFinder(app)(message, "i", rule, None)


def test_a_worker_makes_the_key_that_a_plain_client_did_not(app: Celery) -> None:
    """By the rule of the task."""
    declared(app)
    exclusive = found(app, Message(7), key_limit=3, on_busy=OnBusy.DROP)
    assert exclusive == Exclusive(key="import:7", limit=3, on_busy=OnBusy.DROP)


def test_the_key_on_the_message_wins(app: Celery) -> None:
    """Also if it says that there is none."""
    declared(app)
    exclusive = found(app, Message(7, lease_key="all"))
    assert exclusive is not None
    assert exclusive.key == "all"
    assert found(app, Message(7, lease_key="")) is None


def test_what_waits_for_its_time_is_not_turned_away_when_it_is_received(app: Celery) -> None:
    """It holds no key while it waits; what is called off by then is not to wait for one."""
    declared(app)
    decides = [
        found(app, Message(7, **headers)).decides  # type: ignore[union-attr]
        for headers in (
            {},
            {"eta": "2030-01-01T00:00:00+00:00"},
            {"expires": "2020-01-01T00:00:00+00:00"},
            {"expires": "2099-01-01T00:00:00+00:00"},
        )
    ]
    assert decides == [True, False, False, True]


def test_a_revoked_task_is_not_parked(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    """Celery revokes it as soon as it sees it."""
    declared(app)
    monkeypatch.setattr(compat.state, "revoked", {"i"})
    exclusive = found(app, Message(7))
    assert exclusive is not None
    assert not exclusive.decides


def test_a_retry_is_told_from_a_newcomer(app: Celery) -> None:
    """It parks before newcomers."""
    declared(app)
    exclusive = found(app, Message(7, retries=1))
    assert exclusive is not None
    assert exclusive.retried


@pytest.mark.parametrize("header", [7, "x" * (LONGEST + 1), None])
def test_a_foreign_header_that_is_no_key_is_an_error(app: Celery, header: Any) -> None:
    """The task fails of it: run without its key it might run twice at once."""
    declared(app)
    with pytest.raises(LeaseConfigError, match="lease_key = "):
        found(app, Message(7, lease_key=header))


def test_the_reason_names_who_is_why() -> None:
    """For people who ask why a task is REVOKED."""
    dropped, replaced = (
        KeyAnswer(verdict, "abc").reason("import:7")
        for verdict in (Verdict.DROPPED, Verdict.REPLACED)
    )
    assert dropped == "dropped: key import:7 is held by task abc"
    assert replaced == "replaced by task abc, which waits for key import:7"


def test_what_short_lines_leave_goes_to_longer_ones() -> None:
    """Of a bounded number of messages that are shown."""
    assert divided({"a": 10_000, "b": 1, "c": 3}, 200) == {"b": 1, "c": 3, "a": 196}
    assert divided({"a": 9, "b": 7}, 10) == {"b": 5, "a": 5}
    many = divided({str(number): 5 for number in range(300)}, 200)
    assert set(many.values()) == {1}
    assert len(many) == 200
    assert divided({}, 200) == {}
