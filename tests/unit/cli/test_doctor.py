"""What ``lease doctor`` makes of what it is told."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from amqp.exceptions import AccessRefused, ChannelError, NotFound, PreconditionFailed
from celery import Celery
from click.testing import CliRunner

import celery_lease
from celery_lease import LeasedTask, ToolContext, brokers, current_context
from celery_lease.brokers.amqp import declared, doctor as rabbitmq
from celery_lease.brokers.redis import doctor as redis
from celery_lease.cli import lease
from celery_lease.cli.doctor import (
    deploy,
    examine,
    leases,
    settings,
    survey,
    tasks,
    whole_app,
    workers,
)
from celery_lease.cli.doctor.case import Case, covered_tasks, task_policies
from celery_lease.cli.doctor.report import Report, lines, rendered
from celery_lease.cli.doctor.survey import WorkerAnswer
from celery_lease.core.findings import Finding, Severity, error, notice, ok, warning
from celery_lease.core.offset import Offset
from celery_lease.settings import LeaseConfigError, load
from celery_lease.task import mapping
from celery_lease.worker.telemetry.about import versions

if TYPE_CHECKING:
    from collections.abc import Iterable

HEALTHY = {
    "redis_version": "7.2.4",
    "role": "master",
    "maxmemory": 0,
    "maxmemory_policy": "noeviction",
    "aof_enabled": 1,
}


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> Celery:
    """An app without tasks of its own, nor those that other apps of this process share."""
    monkeypatch.setattr("celery._state._on_app_finalizers", set())
    return Celery("proj", broker="memory://", set_as_current=False)


def case_of(app: Celery, **facts: Any) -> Case:
    """Return an app as its checks see it."""
    loaded = load(app.conf)
    policies, errors = task_policies(app, loaded)
    assert errors == []
    covered = covered_tasks(app, loaded)
    return Case(app=app, loaded=loaded, policies=policies, covered=covered, **facts)


def severities(findings: Iterable[Finding]) -> dict[str, str]:
    """Return the worst severity of each check."""
    found: dict[str, Severity] = {}
    for each in findings:
        found[each.check] = max(
            each.severity, found.get(each.check, Severity.OK), key=lambda one: one.rank
        )
    return {check: str(severity) for check, severity in found.items()}


def add(app: Celery, function: Any, **options: Any) -> Any:
    """Make a leased task of a function."""
    return app.task(base=LeasedTask, name=f"t.{function.__name__}", shared=False, **options)(
        function
    )


def test_the_uncertainty_of_a_clock_is_the_round_trip() -> None:
    """Told 105.0 between 100 and 101: ahead by 4 to 5, and 4 at least."""
    offset = Offset.of(105.0, 100.0, 101.0)
    assert (offset.low, offset.high, offset.least) == (4.0, 5.0, 4.0)
    assert str(offset) == "+4.500 s (± 0.500 s)"
    assert Offset.of(100.5, 100.0, 101.0).least == 0.0
    assert Offset.of(90.0, 100.0, 101.0).least == 10.0
    between = offset.to(Offset(3.0, 4.5))
    assert (between.low, between.high, between.least) == (-0.5, 2.0, 0.0)


def test_wrong_settings_are_errors_with_their_remedy(app: Celery) -> None:
    """Each broken rule by itself, with what the rule is."""
    app.conf.update(lease_interval=200, lease_extention=300)
    with pytest.raises(LeaseConfigError) as wrong:
        load(app.conf)
    found = list(settings.check_errors([wrong.value]))
    assert [each.severity for each in found] == ["error", "error"]
    assert any("half of lease_extension" in each.what for each in found)
    assert any(each.remedy == "Did you mean lease_extension?" for each in found)
    assert not any(each.remedy.rstrip(".").lower() in each.what.lower() for each in found)


def test_task_options_are_checked_with_the_app_s_settings(app: Celery) -> None:
    """An interval of the app that is too long for one task's extension; others are fine."""
    app.conf.lease_interval = 60

    def short(*, context: ToolContext) -> None: ...

    def usual(*, context: ToolContext) -> None: ...

    add(app, short, lease_extension=100), add(app, usual)
    loaded = load(app.conf)
    policies, errors = task_policies(app, loaded)
    assert list(policies) == ["t.usual"]
    (found,) = settings.check_errors(errors)
    assert "t.short" in found.what


def test_what_is_allowed_and_not_meant_is_a_warning(app: Celery) -> None:
    """For the app and for a task, said once; Celery's own settings that undo leases too."""
    app.conf.update(
        lease_extension=300,
        lease_interval=120,
        worker_prefetch_multiplier=0,
        worker_cancel_long_running_tasks_on_connection_loss=True,
        worker_enable_remote_control=False,
    )

    def one(*, context: ToolContext) -> None: ...

    def other(*, context: ToolContext) -> None: ...

    add(app, one), add(app, other, lease_max_duration=200)
    found = list(settings.check(case_of(app)))
    sense = [each.what for each in found if each.check == "settings.sense"]
    assert sense == [
        "the app: lease_interval = 120 is above a third of lease_extension (300)",
        "task t.other: lease_max_duration = 200 is below lease_extension (300)",
    ]
    (first, _) = (each for each in found if each.check == "settings.sense")
    assert (first.why, first.remedy) == (
        "If an extension fails, less than a third of the lease may be left to repeat it.",
        "Set lease_interval to 60.",
    )
    assert severities(found) == {
        "settings.rules": "ok",
        "settings.sense": "warning",
        "settings.backend": "notice",
        "settings.cancels": "warning",
        "settings.prefetch": "warning",
        "settings.remote_control": "notice",
    }
    amqp = list(settings.check(case_of(app, driver_type="amqp")))
    assert "settings.cancels" not in severities(amqp), "a lost connection takes the leases anyway"
    (backend,) = (each.why for each in amqp if each.check == "settings.backend")
    assert "context.checkpoint() and context.iterate() raise CheckpointError" in backend


def test_an_app_without_leases_is_told_so(app: Celery) -> None:
    """No leased task, or leases off: both look like leases and are none."""
    assert severities(settings.check(case_of(app)))["settings.tasks"] == "warning"
    app.conf.lease_enabled = False
    fresh = Celery("other", broker="memory://", set_as_current=False)
    fresh.conf.lease_enabled = False
    assert severities(settings.check(case_of(fresh)))["settings.enabled"] == "warning"


def none(x: int) -> int:
    """Take no context."""
    return x


def unused(x: int, *, context: ToolContext) -> int:  # noqa: ARG001
    """Take a context for nothing."""
    return x


def used(*, context: ToolContext) -> None:
    """Beat."""
    context.beat()


def inner(tool: ToolContext) -> None:
    """Beat in a function inside."""

    def helper() -> None:
        tool.beat()

    helper()


def asks() -> None:
    """Beat without a parameter."""
    current_context().beat()


def asks_by_module() -> None:
    """The same."""
    celery_lease.current_context().beat()


def pair(a: int, *, context: ToolContext) -> tuple[int, ToolContext]:
    """Use two variables at once, which is one instruction since Python 3.13."""
    return a, context


def daemon(x: int) -> int:
    """Need no beats, by its mode."""
    return x


def test_code_that_cannot_beat_is_found(app: Celery) -> None:
    """Without a context, or with one that is never used; functions inside count as use."""
    for function in (none, unused, used, inner, asks, asks_by_module, pair):
        add(app, function)
    add(app, daemon, lease_mode="daemon")
    app.finalize()
    found = list(tasks.check(case_of(app)))
    assert [each.what for each in found] == [
        "task t.none takes no context, and does not call current_context()",
        "task t.unused takes context and never uses it",
    ]
    assert "beats, its lease is lost 300 s after" in found[0].why


def test_a_task_that_is_observed_would_lose_its_lease(app: Celery) -> None:
    """Nothing is enforced yet: the finding says in which mode it would be."""
    add(app, none, lease_mode="observe")
    app.finalize()
    (found,) = tasks.check(case_of(app))
    assert "in heartbeat mode its lease is lost" in found.why


def test_what_workers_saw_of_tasks_counts(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    """Static reading says nothing of a task that beats too seldom."""
    worker = WorkerAnswer(name="w1", leased=True, about={"silent": ["t.slow"], "enabled": True})
    monkeypatch.setattr(examine, "survey", lambda *_: [worker])
    findings = examine.examine(app, 0.1).findings
    (found,) = (each for each in findings if each.check == "tasks.slow")
    assert "t.slow" in found.what
    assert "w1" in found.what


@pytest.mark.parametrize(
    ("grace", "severity"),
    [(None, "notice"), (30, "error"), (40, "warning"), (41, "ok"), (300, "ok")],
)
def test_the_grace_period_is_held_against_the_rule_of_the_docs(
    app: Celery, grace: float | None, severity: str
) -> None:
    """PreStop + levels x (shutdown timeout + 10); not even the timeout is an error."""
    assert severities(deploy.check(case_of(app), grace, 1, 0)) == {"deploy.grace": severity}


def test_levels_hooks_and_the_longest_shutdown_timeout_count(app: Celery) -> None:
    """A task's own shutdown timeout is waited for as well."""

    def patient(*, context: ToolContext) -> None: ...

    add(app, patient, lease_shutdown_timeout=60)
    case = case_of(app)
    assert severities(deploy.check(case, 145, 2, 5))["deploy.grace"] == "warning"
    assert severities(deploy.check(case, 146, 2, 5))["deploy.grace"] == "ok"


@pytest.mark.parametrize(
    ("wait", "grace", "severity"),
    [(20, 15, "error"), (20, 31, "warning"), (20, 32, "ok"), (None, 21, "warning"), (1, 16, "ok")],
)
def test_the_last_poll_of_sqs_counts(
    app: Celery, wait: int | None, grace: float, severity: str
) -> None:
    """A stopping worker waits for its end, whether a task runs or not."""
    pytest.importorskip("boto3")
    app.conf.broker_url = "sqs://"
    app.conf.broker_transport_options = {} if wait is None else {"wait_time_seconds": wait}
    app.conf.lease_shutdown_timeout = 5
    (found,) = deploy.check(case_of(app), grace, 1, 0)
    assert found.severity.value == severity
    assert ("wait_time_seconds" in str(found.remedy)) == (severity != "ok")


def test_a_remapped_signal_is_found(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    """It makes a cold shutdown of every stop."""
    monkeypatch.setenv("REMAP_SIGTERM", "SIGQUIT")
    assert severities(deploy.check(case_of(app), 60, 1, 0))["deploy.sigterm"] == "warning"


@pytest.mark.parametrize(
    ("info", "check", "severity"),
    [
        ({}, "redis.version", "ok"),
        ({"redis_version": "6.0.16"}, "redis.version", "error"),
        ({"cluster_enabled": 1}, "redis.cluster", "error"),
        ({"role": "slave"}, "redis.role", "error"),
    ],
)
def test_servers_that_cannot_keep_leases_are_told(
    info: dict[str, Any], check: str, severity: str
) -> None:
    """Too old, split over nodes, or read-only."""
    assert severities(redis._server({**HEALTHY, **info})) == {check: severity}


@pytest.mark.parametrize(
    ("policy", "limit", "severity"),
    [
        ("noeviction", 10**8, "ok"),
        ("allkeys-lru", 10**8, "error"),
        ("allkeys-lru", 0, "warning"),
        ("volatile-ttl", 10**8, "warning"),
        ("volatile-ttl", 0, "notice"),
    ],
)
def test_eviction_is_as_bad_as_what_it_may_delete(policy: str, limit: int, severity: str) -> None:
    """Queues never expire, so volatile policies spare them; without a limit nothing is evicted."""
    info = {**HEALTHY, "maxmemory_policy": policy, "maxmemory": limit}
    assert severities(redis._eviction(info)) == {"redis.eviction": severity}


@pytest.mark.parametrize(
    ("info", "save", "severity"),
    [
        ({}, "", "ok"),
        ({"aof_last_write_status": "err"}, "", "error"),
        ({"aof_enabled": 0}, "3600 1", "notice"),
        ({"aof_enabled": 0}, None, "notice"),
        ({"aof_enabled": 0}, "", "warning"),
        ({"aof_enabled": 0, "rdb_last_bgsave_status": "err"}, "3600 1", "error"),
    ],
)
def test_persistence_is_judged_by_what_a_restart_forgets(
    info: dict[str, Any], save: str | None, severity: str
) -> None:
    """All, some minutes, or next to nothing; and a server that cannot write says so itself."""
    assert severities(redis._persistence({**HEALTHY, **info}, save)) == {
        "redis.persistence": severity
    }


def test_a_server_that_is_nearly_full_is_told() -> None:
    """Before it refuses the next message."""
    info = {**HEALTHY, "maxmemory": 100, "used_memory": 95}
    assert severities(redis._memory(info)) == {"redis.memory": "warning"}
    assert severities(redis._memory({**info, "used_memory": 80})) == {}


def answer(name: str, **facts: Any) -> WorkerAnswer:
    """Return what a worker with leases says that agrees with everything here."""
    usual = {
        "leased": True,
        "versions": versions(),
        "visibility_timeout": 3600.0,
        "queues": ("celery",),
        "about": {"enabled": True},
        "clock": Offset(-0.01, 0.01),
    }
    return WorkerAnswer(name=name, **{**usual, **facts})


def test_workers_that_agree_are_fine(app: Celery) -> None:
    """Every line is ok."""
    case = case_of(app, driver_type="redis", workers=[answer("w1"), answer("w2")])
    assert set(severities(workers.check(case, 2)).values()) == {"ok"}


@pytest.mark.parametrize(
    ("facts", "check", "severity", "part"),
    [
        ({"leased": False, "about": {}}, "workers.plain", "warning", "celery"),
        (
            {"leased": False, "about": {}, "queues": ("mail",)},
            "workers.plain",
            "notice",
            "without leases: w2",
        ),
        ({"about": {"enabled": False}}, "workers.disabled", "notice", "w2"),
        (
            {"versions": {**versions(), "celery-lease": "9.0"}},
            "workers.versions",
            "warning",
            "9.0: w2",
        ),
        ({"versions": {**versions(), "kombu": "9.0"}}, "workers.versions", "notice", "9.0: w2"),
        ({"visibility_timeout": 30.0}, "workers.visibility_timeout", "warning", "30 s: w2"),
        ({"settings": {"lease_extension": 9}}, "workers.settings", "notice", "9 there"),
        ({"clock": Offset(61.0, 61.1)}, "workers.clock", "warning", "+61.050 s"),
        ({"clock": Offset(-5.0, 5.0)}, "workers.clock", "ok", "± 5.000 s"),
    ],
)
def test_a_worker_that_differs_is_named(
    app: Celery, facts: dict[str, Any], check: str, severity: str, part: str
) -> None:
    """What a worker says that the others and this app do not; nothing beyond a clock's doubt."""
    case = case_of(app, driver_type="redis", workers=[answer("w1"), answer("w2", **facts)])
    found = [each for each in workers.check(case, 2) if each.check == check]
    assert severities(found) == {check: severity}
    assert any(part in each.what for each in found)


def test_a_long_visibility_timeout_is_worth_a_word(app: Celery) -> None:
    """It is what people set before they have leases."""
    app.conf.broker_transport_options = {"visibility_timeout": 43200}
    case = case_of(app, driver_type="redis")
    assert severities(workers.check(case, 2)) == {
        "workers.none": "notice",
        "workers.visibility_timeout": "notice",
    }


def test_a_check_that_fails_is_a_finding_and_stops_nothing() -> None:
    """What it found before is kept."""

    def check() -> Iterable[Finding]:
        yield ok("redis.version", "fine")
        raise RuntimeError("NOPERM\nINFO")

    found = list(examine._guarded("redis", check))
    assert severities(found) == {"redis.version": "ok", "redis.check": "warning"}
    assert "RuntimeError: NOPERM INFO" in found[1].what


FINDINGS = [
    ok("redis.version", "fine"),
    warning("redis.memory", "95 % used", "soon full", "more memory"),
    notice("workers.none", "nobody"),
]


def test_reports_are_plain_in_a_pipe_and_complete_on_a_terminal() -> None:
    """The same words in both; no escapes in the plain one."""
    from rich.console import Console

    report = Report(app="proj", broker="redis://x", findings=FINDINGS)
    plain = "\n".join(lines(report))
    assert "\x1b" not in plain
    console = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: PTH123, SIM115
    with console.file:
        console.print(rendered(report))
    rich = console.export_text()
    for text in ("fine", "95 % used", "soon full", "more memory", "nobody"):
        assert text in plain
        assert text in rich
    assert plain.endswith("1 warning, 1 notice, 1 ok")


@pytest.mark.parametrize(
    ("findings", "strict", "code"),
    [
        ([], True, 0),
        (FINDINGS, False, 0),
        (FINDINGS, True, 1),
        ([*FINDINGS, error("a.b", "c", "d", "e")], False, 1),
        ([notice("a.b", "c")], True, 0),
    ],
)
def test_the_exit_code_is_that_of_the_worst(
    findings: list[Finding], strict: bool, code: int
) -> None:
    """Errors always, warnings if strict."""
    report = Report(app="proj", broker="x", findings=findings)
    assert report.exit_code(strict=strict) == code


def test_the_command_writes_json_of_an_app_that_it_cannot_serve() -> None:
    """A broker without a driver, an import that fails: findings, not tracebacks."""
    app = Celery(
        "proj", broker="filesystem://", include=["no_such_module_here"], set_as_current=False
    )
    context = SimpleNamespace(app=app, no_color=True)
    result = CliRunner().invoke(lease, ["doctor", "--json"], obj=context)
    assert result.exit_code == 1, result.output
    document = json.loads(result.output)
    found = {each["check"]: each for each in document["findings"]}
    assert found["tasks.import"]["severity"] == "error"
    assert "no_such_module_here" in found["tasks.import"]["what"]
    assert found["broker.supported"]["severity"] == "error"
    assert document["counts"]["error"] == 2


def test_no_rule_holds_beside_a_broken_one(app: Celery) -> None:
    """Nor has an app no leased task whose only one is refused."""
    app.conf.lease_interval = 60

    def short(*, context: ToolContext) -> None: ...

    def usual(*, context: ToolContext) -> None: ...

    add(app, short, lease_extension=100)
    for _ in range(2):
        loaded = load(app.conf)
        policies, errors = task_policies(app, loaded)
        assert errors
        case = Case(app=app, loaded=loaded, policies=policies, refused=len(errors))
        found = severities([*settings.check_errors(errors), *settings.check(case)])
        assert found["settings.rule"] == "error"
        assert "settings.rules" not in found
        assert "settings.tasks" not in found
        add(app, usual)


@pytest.mark.parametrize(
    ("driver_type", "said"), [("redis", True), ("amqp", True), ("pgmq", False)]
)
def test_remote_control_is_not_asked_for_where_there_is_none(
    app: Celery, driver_type: str, said: bool
) -> None:
    """On pgmq the doctor wants it off: a worker with a long name does not start with it."""
    app.conf.worker_enable_remote_control = False
    found = severities(settings.check(case_of(app, driver_type=driver_type)))
    assert ("settings.remote_control" in found) is said


@pytest.mark.parametrize("enabled", [True, False])
def test_a_broker_without_leases_stops_only_workers_that_want_some(
    app: Celery, enabled: bool
) -> None:
    """With lease_enabled off a worker starts on any broker."""
    app.conf.update(lease_enabled=enabled, broker_url="filesystem://")
    found = severities(examine.examine(app, 0.1).findings)
    assert found["broker.supported"] == ("error" if enabled else "notice")


@pytest.mark.parametrize(
    ("up", "says"),
    [
        ([], "no worker with leases answers"),
        ([{"leased": False}], "no worker with leases answers"),
        ([{"leased": True}], "w1 should have"),
    ],
)
def test_overdue_messages_do_not_deny_the_workers_that_answered(
    app: Celery, up: list[dict[str, Any]], says: str
) -> None:
    """Each worker with leases sweeps for all queues."""
    late = SimpleNamespace(late=1e6, leased=True)
    driver: Any = SimpleNamespace(overdue=lambda limit: [late][:limit])
    case = case_of(app, driver_type="redis", workers=[answer("w1", **each) for each in up])
    assert says in leases._overdue(case, driver).why


def test_what_wrong_settings_hide_is_no_fault_of_the_broker(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which queues dead letters are in is one of them."""
    app.conf.lease_interval = 200
    able = SimpleNamespace(reaps=False, dead_letters=True)
    driver = SimpleNamespace(capabilities=able, dead_letters=pytest.fail, close=lambda: None)
    monkeypatch.setattr(brokers, "driver", lambda _: driver)
    assert list(leases.check(Case(app=app, loaded=None, policies={}))) == []


def test_a_plain_worker_on_a_queue_that_leased_tasks_go_to_is_told_as_such(app: Celery) -> None:
    """Also where no worker with leases consumes that queue, or none is up."""

    def one(*, context: ToolContext) -> None: ...

    add(app, one)
    app.conf.task_routes = {"t.one": {"queue": "video"}}
    for queue, severity in (("video", "warning"), ("mail", "notice")):
        plain = answer("w1", leased=False, queues=(queue,))
        found = severities(workers.check(case_of(app, driver_type="redis", workers=[plain]), 1.0))
        assert found["workers.plain"] == severity


def rabbit(refusal: type[ChannelError] = NotFound, text: str = "") -> SimpleNamespace:
    """Return a connection to a RabbitMQ that refuses each declaration of a queue."""

    def refuse(**_: Any) -> None:
        raise refusal(text)

    channel = SimpleNamespace(
        exchange_declare=lambda **_: None,
        queue_declare=refuse,
        prepare_queue_arguments=lambda arguments, **_: arguments,
        close=lambda: None,
        is_open=True,
    )
    return SimpleNamespace(server_properties={"version": "3.13"}, channel=lambda: channel)


@pytest.mark.parametrize(
    ("refusal", "text", "said"),
    [
        (
            PreconditionFailed,
            (
                "PRECONDITION_FAILED - inequivalent arg 'x-max-priority' for queue 'celery' in "
                "vhost '/': received the value '10' of type 'signedint' but current is none"
            ),
            "x-max-priority is none there, and the value '10' of type 'signedint' in this app",
        ),
        (PreconditionFailed, "PRECONDITION_FAILED - never seen", "PRECONDITION_FAILED - never"),
        (AccessRefused, "ACCESS_REFUSED - no access to queue 'celery'", "rabbitmqctl set_perm"),
    ],
)
def test_a_refused_declaration_is_told_with_the_difference(
    app: Celery, refusal: type[ChannelError], text: str, said: str
) -> None:
    """In the server's words, where they are not understood."""
    channel = SimpleNamespace(connection=rabbit(refusal, text))
    case = case_of(app, driver_type="amqp", channel=channel)
    (found,) = declared.check(case)
    assert (found.check, found.severity) == ("rabbitmq.declared", "error")
    assert said in f"{found.what} {found.remedy}"


def test_a_queue_of_others_is_not_called_a_classic_one(app: Celery) -> None:
    """How a queue that this app does not declare was made cannot be asked over AMQP."""
    channel = SimpleNamespace(connection=rabbit())
    worker = answer("w1", queues=("theirs",))
    case = case_of(app, driver_type="amqp", workers=[worker], channel=channel)
    said = [each.what for each in rabbitmq.check(case) if each.check == "rabbitmq.deliveries"]
    assert any("queue celery is declared as a classic queue" in each for each in said)
    assert any("queue theirs is not in this app's task_queues" in each for each in said)


@pytest.mark.parametrize(
    ("limit", "severity"),
    [
        ({}, "ok"),
        ({"x-delivery-limit": 2}, "warning"),
        ({"x-delivery-limit": 5}, "ok"),
        ({"x-delivery-limit": -1}, "ok"),
    ],
)
def test_a_delivery_limit_that_comes_before_the_workers_is_told(
    app: Celery, limit: dict[str, int], severity: str
) -> None:
    """``lease_max_deliveries`` is 5; a negative limit is none."""
    arguments = {"x-queue-type": "quorum", "x-dead-letter-exchange": "dead", **limit}
    found = rabbitmq._deliveries(case_of(app, driver_type="amqp"), "q", arguments)
    assert found.severity.value == severity


def test_workers_that_could_not_be_asked_are_not_said_to_be_silent(app: Celery) -> None:
    """That they could not is a finding of its own."""
    assert "workers.none" in severities(workers.check(case_of(app, driver_type="amqp"), 1.0))
    case = case_of(app, driver_type="amqp", unasked=True)
    assert severities(workers.check(case, 1.0)) == {}


@pytest.mark.parametrize(
    ("options", "extension", "said"),
    [
        ({}, 300, "assumed: consumer_timeout is not set"),
        ({"consumer_timeout": 1800}, 300, "1800 s as the app says"),
        ({}, 2000, "or lower lease_extension"),
    ],
)
def test_a_consumer_timeout_is_assumed_or_said_and_so_is_what_it_bounds(
    app: Celery, options: dict[str, int], extension: float, said: str
) -> None:
    """One that is the server's default may be said, too."""

    def one(*, context: ToolContext) -> None: ...

    add(app, one, lease_extension=extension)
    app.conf.broker_transport_options = options
    case = case_of(app, driver_type="amqp", channel=SimpleNamespace(connection=rabbit()))
    (found,) = [each for each in rabbitmq.check(case) if each.check == "rabbitmq.consumer_timeout"]
    assert said in found.what + found.remedy


def test_tasks_of_this_package_and_refused_ones_are_not_called_plain(app: Celery) -> None:
    """Those that ``map`` sends have leases, and the remedy for a wrong option is another one."""

    def short(*, context: ToolContext) -> None: ...

    add(app, short, lease_extension=1, lease_interval=60)

    def late() -> None: ...

    app.task(name="t.late", acks_late=True, shared=False)(late)
    mapping.register(app)
    loaded = load(app.conf)
    server = SimpleNamespace(server_properties={"version": "3.13.7"})
    channel: Any = SimpleNamespace(connection=server)
    case = Case(app=app, loaded=loaded, policies={}, driver_type="amqp", channel=channel)
    (found,) = rabbitmq._plain_tasks(case)
    assert found.what.endswith(": t.late")


def test_late_tasks_without_a_lease_are_named_with_the_longest_that_runs(app: Celery) -> None:
    """And what would give them one; not those that are acknowledged early, nor Celery's own."""

    def task() -> None: ...

    for name, late in {"reports.yearly": True, "reports.weekly": True, "mail": False}.items():
        app.task(task, name=name, acks_late=late, shared=False)
    running = {"reports.weekly": 60.0, "reports.yearly": 2460.0, "mail": 9999.0}
    case = case_of(app, workers=[WorkerAnswer(name="w@h", leased=True, running=running)])
    (found,) = whole_app.check(case)
    assert found.severity == "notice"
    assert found.what == (
        "2 late-ack tasks without a lease, longest seen 41m00s (reports.yearly, which runs): "
        "reports.weekly, reports.yearly"
    )
    assert 'lease_tasks = "all"' in found.remedy


def test_an_app_whose_tasks_are_all_covered_is_well(app: Celery) -> None:
    """It has leases, and nothing is proposed; what cannot be covered is named."""

    def task() -> None: ...

    app.task(task, name="late", acks_late=True, shared=False)
    app.task(task, name="batch", Strategy="batches:Own", shared=False)
    app.conf.lease_tasks = "all"
    case = case_of(app)
    assert severities(settings.check(case))["settings.rules"] == "ok"
    assert not case.plain_tasks.keys() & {"late"}
    (found,) = whole_app.check(case)
    assert (found.check, found.severity) == ("tasks.uncovered", "warning")
    assert "batch" in found.what


def test_with_leases_off_nothing_is_proposed(app: Celery) -> None:
    """That is said once, elsewhere."""

    def task() -> None: ...

    app.task(task, name="late", acks_late=True, shared=False)
    app.conf.update(lease_tasks="all", lease_enabled=False)
    assert list(whole_app.check(case_of(app))) == []


def test_how_long_a_task_runs_by_now_is_read_from_celerys_own_answer() -> None:
    """The longest of each name; what has not begun has no time."""
    now = survey.SystemClock().wall().timestamp()
    active = [
        {"type": "a", "time_start": now - 50},
        {"type": "a", "time_start": now - 500},
        {"type": "b", "time_start": None},
    ]
    found = survey._running(active)
    assert (list(found), round(found["a"], -1)) == (["a"], 500)
    assert survey._running(None) == {}


def test_each_subject_is_one_part_of_the_report() -> None:
    """Where its findings were made apart, too: the order is that of each one's first."""
    found = [ok("tasks.a", "one"), ok("leases.b", "two"), ok("tasks.c", "three")]
    text = list(lines(Report(app="proj", broker="memory://", findings=found)))
    assert [each for each in text if each in {"tasks", "leases"}] == ["tasks", "leases"]
    assert text.index("  ok       one") + 1 == text.index("  ok       three")
