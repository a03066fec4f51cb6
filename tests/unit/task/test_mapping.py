"""``map``, ``starmap`` and ``chunks`` of leased tasks are leased tasks themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery, _state, chain, chord, group, signature
from celery.app import builtins

from celery_lease import LeaseConfigError, LeasedTask, current_context, settings
from celery_lease.task.mapping import CHUNKS, MAP, NAMES, STARMAP
from celery_lease.worker import compat
from celery_lease.worker.policies import Policies
from unit.leased_runs import Delivery, make_app, sent

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.compat


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> Celery:
    """An app of one test, without tasks that others share; its broker is the process's, empty."""
    celerys = {one for one in _state._on_app_finalizers if one.__module__ == builtins.__name__}
    monkeypatch.setattr(_state, "_on_app_finalizers", celerys)
    app = make_app()
    sent(app)
    return app


@pytest.fixture
def double(app: Celery) -> Any:
    """A leased task with options of its own."""

    @app.task(
        base=LeasedTask,
        name="double",
        lazy=False,
        shared=False,
        lease_extension=77,
        lease_max_deliveries=9,
        compression="zlib",
        time_limit=5,
    )
    def double(x: int, y: int = 0) -> Any:
        return 2 * x + y, current_context().leased

    return double


WAYS: dict[str, tuple[Callable[[Any], Any], list[str]]] = {
    "map": (lambda task: task.map(iter([1, 2])), [MAP]),
    "starmap": (lambda task: task.starmap([(1, 2)]), [STARMAP]),
    "chunks": (lambda task: task.chunks(iter([(1,), (2,), (3,)]), 2), [STARMAP, STARMAP]),
    "chunks as a group": (lambda task: task.chunks([(1,), (2,)], 1).group(), [STARMAP] * 2),
    "chain": (lambda task: chain(task.map([1]), task.s(1)), [MAP]),
    "group": (lambda task: group(task.map([1]), task.starmap([(1,)])), [MAP, STARMAP]),
    "chord": (lambda task: chord([task.map([1]), task.map([2])], task.si(1)), [MAP, MAP]),
    "read back": (lambda task: signature(dict(task.map([1])), app=task.app), [MAP]),
    "chunks read back": (
        lambda task: signature(dict(task.chunks([(1,)], 1)), app=task.app),
        [CHUNKS],
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_what_is_sent_is_leased_by_the_rules_of_the_inner_task(
    app: Celery, double: Any, way: str
) -> None:
    """In canvas, too; what the task itself is sent with holds, but a time limit is one item's.

    Failed before with: ``['celery.map'] == ['celery_lease.map']``.
    """
    make, names = WAYS[way]
    make(double).apply_async()
    messages = sent(app)
    assert [message.headers["task"] for message in messages] == names
    policies = Policies(app, settings.load(app.conf))
    for message in messages:
        name, _, options = compat.task_of(message)
        policy = policies(name, options)
        assert name == "double"
        assert policy is not None
        assert (policy.extension, policy.max_deliveries) == (77, 9)
        assert message.headers["compression"] == "application/x-gzip"
        assert message.headers["timelimit"] == [None, None]


@pytest.mark.parametrize(
    ("name", "items", "expected"),
    [(MAP, [1, 2], [(2, True), (4, True)]), (STARMAP, [[1, 2], [3]], [(4, True), (6, True)])],
)
def test_the_items_are_worked_on_under_one_lease_and_counted(
    double: Any, monkeypatch: pytest.MonkeyPatch, name: str, items: Any, expected: Any
) -> None:
    """The inner task is called for each, and its context is that of the whole."""
    delivery, task = Delivery(monkeypatch), double.app.tasks[name]
    assert delivery.trace(task, double.s(), items).retval == expected
    progress = delivery.board.read_progress(delivery.slot)
    assert (progress.done, progress.total) == (2, 2)


def test_each_item_is_a_beat(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of a task that does not beat; the item after the loss is not begun."""
    delivery, done = Delivery(monkeypatch), []

    @app.task(base=LeasedTask, name="silent", lazy=False, shared=False)
    def silent(x: int) -> None:
        done.append(x)
        if x == 2:
            delivery.taken()

    delivery.trace(app.tasks[MAP], silent.s(), [1, 2, 3])
    assert done == [1, 2]
    assert delivery.state(app.tasks[MAP]) == "PENDING"


def test_an_option_of_the_call_counts_for_more(app: Celery, double: Any) -> None:
    """As for any leased task, and checked by the inner task's rules."""
    double.map([1]).set(lease_extension=50).apply_async(priority=8)
    (message,) = sent(app)
    assert message.headers["lease"] == {"lease_extension": 50}
    assert message.properties["priority"] == 8
    with pytest.raises(LeaseConfigError, match="'double'"):
        double.map([1]).apply_async(lease_mode="daemom")
    assert sent(app) == []


def test_the_message_goes_where_the_inner_task_goes(app: Celery, double: Any) -> None:
    """By its route, as Celery's own."""
    app.conf.task_routes = {"double": {"queue": "elsewhere"}}
    double.map([1]).apply_async()
    double.chunks([(1,)], 1)()
    assert sent(app) == []
    assert len(sent(app, "elsewhere")) == 2


def test_eager_apps_and_direct_calls_work_as_with_celerys_own(app: Celery, double: Any) -> None:
    """The same results."""
    app.conf.task_always_eager = True
    assert double.map([1, 2]).delay().get() == [(2, False), (4, False)]
    assert double.starmap([(1, 2)])() == [(4, False)]
    parts = double.chunks([(1,), (2,), (3,)], 2).apply_async().get()
    assert parts == [[(2, False), (4, False)], [(6, False)]]


def test_what_a_plain_client_sends_stays_celerys(app: Celery, double: Any) -> None:
    """``celery.map`` by name is Celery's task, with no lease."""
    app.send_task("celery.map", kwargs={"task": double.s(), "it": [1]})
    (message,) = sent(app)
    name, _, options = compat.task_of(message)
    assert Policies(app, settings.load(app.conf))(name, options) is None


def test_a_task_never_leases_only_if_no_call_of_it_does(app: Celery, double: Any) -> None:
    """A mapping task has the leases of what it maps; an unknown name may be anybody's."""

    @app.task(name="plain")
    def plain() -> None:
        """Have no lease."""

    policies = Policies(app, settings.load(app.conf))
    names = ["plain", double.name, *sorted(NAMES), "unknown", ""]
    assert [each for each in names if policies.never_leases(each)] == ["plain"]
    app.conf.lease_tasks = "all"
    assert not Policies(app, settings.load(app.conf)).never_leases("plain")


def test_an_app_has_these_tasks_once_it_has_a_leased_one(app: Celery, double: Any) -> None:
    """And no others than Celery's own before."""
    assert set(app.tasks) >= NAMES
    assert NAMES.isdisjoint(make_app().tasks)
    assert double.name in app.tasks
