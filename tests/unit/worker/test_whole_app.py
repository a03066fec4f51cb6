"""``lease_tasks``: whom it names, what holds for them, and how a worker comes to know of it."""

from __future__ import annotations

import math
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery, Task, _state, bootsteps
from celery.concurrency import get_implementation
from celery.signals import worker_init
from celery.worker import WorkController

import celery_lease
from celery_lease import LeaseConfigError, LeasedTask, settings
from celery_lease.board import granting
from celery_lease.cli import plugin
from celery_lease.core.delivery import Answer
from celery_lease.core.loss import LossReason
from celery_lease.core.policy import LeasePolicy, Mode
from celery_lease.installation import CONSUMER_STEP, WORKER_STEP
from celery_lease.worker.entries import Ending
from celery_lease.worker.policies import Policies
from celery_lease.worker.telemetry.about import log_uncovered
from unit.fake_broker import Bench

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.compat


def nothing() -> None: ...


def app_with(tasks: dict[str, dict[str, Any]] | None = None, **conf: Any) -> Celery:
    """Return an app with plain tasks of these names and options."""
    app = Celery("whole", broker="memory://", set_as_current=False)
    app.conf.update(conf)
    for name, options in (tasks or {"reports.yearly": {}, "reports.tiny": {}, "mail": {}}).items():
        app.task(nothing, name=name, shared=False, lazy=False, **options)
    return app


def policies(app: Celery) -> Policies:
    """Return what a worker of an app has, checked."""
    found = Policies(app, settings.load(app.conf))
    found.check()
    return found


def policy(app: Celery, name: str = "mail", **call: Any) -> LeasePolicy | None:
    """Return what holds for a message of a task."""
    return policies(app)(name, call)


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ("decorated", []),
        ("all", ["mail", "reports.tiny", "reports.yearly"]),
        (["reports.*"], ["reports.tiny", "reports.yearly"]),
        (("reports.*", "!reports.tiny"), ["reports.yearly"]),
        (["!reports.*", "*"], ["mail"]),
        ({"mail"}, ["mail"]),
        (["Mail"], []),
    ],
)
def test_tasks_are_chosen_by_name(value: Any, names: list[str]) -> None:
    """In whatever order the patterns are; a pattern that excludes wins."""
    app = app_with(lease_tasks=value)
    assert sorted({"mail", "reports.tiny", "reports.yearly"} & set(policies(app).covered)) == names


def test_celerys_own_tasks_are_tasks_too() -> None:
    """They wait in a worker and are lost with it as any other."""
    covered = policies(app_with(lease_tasks="all")).covered
    assert {"celery.chord_unlock", "celery.backend_cleanup", "celery.map"} <= set(covered)


def test_the_life_of_the_process_is_proof_enough() -> None:
    """Whatever the app's mode is for tasks that can beat; and no limit that nobody set."""
    found = policy(app_with(lease_tasks="all", lease_mode="heartbeat", lease_extension=60))
    assert found is not None
    assert (found.mode, found.extension) == (Mode.DAEMON, 60.0)
    assert (found.max_duration, found.shutdown_timeout) == (math.inf, math.inf)


def test_limits_that_were_set_hold() -> None:
    """By the app, or by the task itself."""
    found = policy(app_with(lease_tasks="all", lease_max_duration=60, lease_shutdown_timeout=20))
    assert found is not None
    assert (found.max_duration, found.shutdown_timeout) == (60.0, 20.0)
    own = policy(app_with({"mail": {"lease_max_duration": 50}}, lease_tasks="all"))
    assert own is not None
    assert own.max_duration == 50.0


def test_an_app_that_observes_does_so_for_all() -> None:
    """The first step of a rollout."""
    found = policy(app_with(lease_tasks="all", lease_mode="observe"))
    assert found is not None
    assert found.mode is Mode.OBSERVE


def test_a_tasks_own_options_hold() -> None:
    """Its author may say how, or that it gets none."""
    tasks = {
        "own": {"lease_mode": "heartbeat", "lease_extension": 9},
        "off": {"lease_enabled": False},
    }
    app = app_with(tasks, lease_tasks="all")
    found = policy(app, "own")
    assert found is not None
    assert (found.mode, found.extension) == (Mode.HEARTBEAT, 9.0)
    assert policy(app, "off") is None
    assert not policies(app).uncovered


def test_a_call_of_a_client_that_knows_the_task_as_leased_has_its_options() -> None:
    """Its header is read; the rest is that of an undecorated task."""
    found = policy(app_with(lease_tasks="all"), lease_extension=40)
    assert found is not None
    assert (found.extension, found.mode, found.max_duration) == (40.0, Mode.DAEMON, math.inf)
    assert policy(app_with(lease_tasks="all"), lease_enabled=False) is None


def test_wrong_options_of_a_task_are_refused_only_if_it_is_chosen() -> None:
    """They are its own business until then."""
    tasks = {"mail": {"lease_extension": "5"}}
    assert policy(app_with(tasks)) is None
    with pytest.raises(LeaseConfigError, match="lease_extension"):
        policies(app_with(tasks, lease_tasks="all"))


def test_a_key_needs_a_leased_task() -> None:
    """An early-acknowledged one would hold none; the error says what to do."""
    app = app_with({"mail": {"lease_key": "mail:{x}"}}, lease_tasks="all")
    with pytest.raises(LeaseConfigError, match=r"'mail': lease_key = .*@leased_task"):
        policies(app)


def test_a_decorated_task_keeps_its_own_policy() -> None:
    """``lease_tasks`` says nothing of it."""
    app = app_with({"beats": {"base": LeasedTask}}, lease_tasks="all")
    found = policy(app, "beats")
    assert found is not None
    assert (found.mode, found.max_duration) == (Mode.HEARTBEAT, 43200.0)
    assert "beats" not in policies(app).covered


def test_what_cannot_be_leased_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    """In one line, and so is a pattern that names nothing."""
    app = app_with(
        {"batch": {"Strategy": "batches:Own"}, "mail": {}}, lease_tasks=["batch", "mial"]
    )
    found = policies(app)
    assert (found.covered, list(found.uncovered)) == ([], ["batch"])
    assert found("batch", {}) is None
    log_uncovered(found)
    assert [each.levelname for each in caplog.records] == ["WARNING", "WARNING"]
    assert caplog.messages == [
        "no lease by lease_tasks for 1 task: batch (it has a strategy of its own, 'batches:Own')",
        "lease_tasks: pattern 'mial' matches no undecorated task",
    ]
    assert app.tasks["batch"].Request == Task.Request


# How a worker comes to know.


def steps(app: Celery) -> bool:
    """Whether the worker parts are in an app."""
    return WORKER_STEP in app.steps["worker"] and CONSUMER_STEP in app.steps["consumer"]


@pytest.mark.parametrize(
    ("conf", "installed"),
    [
        ({}, False),
        ({"lease_tasks": "decorated"}, False),
        ({"lease_tasks": "all"}, True),
        ({"lease_tasks": ["mail"]}, True),
        ({"lease_tasks": 5}, True),
        ({"lease_task": "all"}, True),
        ({"CELERY_LEASE_TASKS": "all"}, True),
        ({"lease_extension": 60}, False),
        ({"lease_office": "Berlin"}, False),
        ({"lease_office": "Berlin", "lease_tasks": "all"}, True),
    ],
    ids=str,
)
def test_a_worker_gets_the_parts_if_the_setting_is_meant(
    conf: dict[str, Any], *, installed: bool
) -> None:
    """A wrong value or a name very like it, too: the parts refuse it. Others' settings do not."""
    app = app_with(**conf)
    plugin._install(SimpleNamespace(app=app))
    assert steps(app) == installed


def test_djangos_namespace_is_read() -> None:
    """``CELERY_LEASE_TASKS``."""
    app = Celery("whole", broker="memory://", set_as_current=False)
    app.config_from_object({"CELERY_LEASE_TASKS": "all"}, namespace="CELERY")
    plugin._install(SimpleNamespace(app=app))
    assert steps(app)


def test_every_celery_command_listens_for_workers() -> None:
    """It imports the commands of this package, which connect."""
    assert any(receiver is plugin._install for _, receiver in worker_init.receivers)


def test_a_step_that_is_added_when_a_worker_begins_is_one_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Celery sends ``worker_init`` before it reads the app's bootsteps."""
    # A worker sets this for its process, whose later tests wait for results.
    monkeypatch.setattr(_state, "_task_join_will_block", False)

    class Added(bootsteps.Step):
        pass

    def add(sender: Any, **_: Any) -> None:
        sender.app.steps["worker"].add(Added)

    worker_init.connect(add)
    try:
        worker: Any = WorkController(app=app_with(), pool_cls="solo", hostname="w@unit")
    finally:
        worker_init.disconnect(add)
    assert any(isinstance(step, Added) for step in worker.blueprint.steps.values())


@pytest.mark.parametrize("kind", ["solo", "threads"])
def test_these_pools_tell_of_a_task_before_it_runs_in_its_own_thread(kind: str) -> None:
    """There an early task is acknowledged; a pool of greenlets does so, too."""
    pool = get_implementation(kind)(1, app=app_with())
    called: list[tuple[str, int]] = []
    done = threading.Event()
    pool.start()
    pool.apply_async(
        lambda: called.append(("target", threading.get_ident())),
        (),
        accept_callback=lambda *_: called.append(("accepted", threading.get_ident())),
        callback=lambda *_: done.set(),
    )
    assert done.wait(10)
    pool.stop()
    assert [each for each, _ in called] == ["accepted", "target"]
    assert len({thread for _, thread in called}) == 1


def test_a_program_installs_the_parts_itself() -> None:
    """For a worker within it; again is harmless."""
    app = app_with(lease_tasks="all")
    celery_lease.install(app)
    celery_lease.install(app)
    assert steps(app)


def test_the_lease_of_a_dead_process_is_kept_while_its_pool_may_tell() -> None:
    """In daemon mode, for as long as its request asked for; then it expires."""
    bench = Bench(LeasePolicy(extension=10.0, interval=2.0, mode=Mode.DAEMON))
    bench.keeper._lives = lambda _: False
    held = bench.run()
    held.grace = 30.0
    for _ in range(7):
        assert bench.passed(4.0).lost == 0
    assert [bench.passed(4.0).lost for _ in range(5)].count(1) == 1
    assert held.lease.lost is LossReason.EXPIRED


# Acknowledged before it starts.


def test_a_message_is_acknowledged_for_its_start() -> None:
    """Its lease has left the table by then, and nothing is told twice."""
    bench = Bench()
    bench.receive()
    assert bench.leases.complete_first("a")
    assert (bench.driver.sent("complete"), bench.driver.expiries) == (["a"], {})
    assert not bench.leases.knows("a")
    assert bench.leases.endings == {Ending.COMPLETED: 1}
    assert not bench.leases.complete_first("a")
    assert bench.driver.count("complete") == 1


@pytest.mark.parametrize("taken", [False, True])
def test_the_process_of_a_task_is_told_whether_it_may_start(*, taken: bool) -> None:
    """After the broker has answered; and its record is free again."""
    bench = Bench()
    held = bench.receive()
    assert bench.leases.start("a")
    slot: Any = held.slot
    asked: list[bool | None] = []
    complete = bench.driver.complete

    def watched(tags: Any) -> list[Answer]:
        asked.append(granting.answer(bench.board, slot))
        return complete(tags)

    bench.driver.complete = watched  # type: ignore[method-assign]
    if taken:
        bench.driver.expiries.clear()
    assert bench.leases.complete_first("a") is not taken
    assert asked == [None]
    assert granting.answer(bench.board, slot) is not taken
    assert len(bench.leases._grants) == (not taken)


def test_nothing_is_acknowledged_for_a_process_that_does_not_ask_for_its_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It cannot reach the worker's memory, and will not start: the message goes back, unlost."""
    monkeypatch.setattr(granting, "is_asked", lambda *_: False)
    bench = Bench()
    bench.receive()
    bench.leases.start("a")
    assert not bench.leases.complete_first("a")
    assert (bench.driver.count("complete"), bench.driver.sent("requeue")) == (0, ["a"])
    assert bench.leases.endings == {Ending.HANDED_BACK: 1}


def test_a_record_is_lent_until_its_process_has_seen_the_grant() -> None:
    """However long that takes, and however many start meanwhile; but not for ever."""
    bench = Bench()
    slow, fast, dead = (bench.board.lend() for _ in range(3))
    grants = granting.Grants(bench.board)
    for slot in (slow, fast, dead):
        bench.board.allow(slot, 100.0)
        grants.grant(slot, 0.0)
    granting.wait(bench.board, fast)
    grants.sweep(1.0)
    assert len(grants) == 2
    assert granting.answer(bench.board, slow) is True
    granting.wait(bench.board, slow)
    grants.sweep(2.0)
    assert len(grants) == 1
    grants.sweep(granting.FORGOTTEN + 1)
    assert len(grants) == 0


def test_a_message_that_is_returned_before_its_process_may_start_is_not_started() -> None:
    """As when the worker stops, or its connection is lost: it waits, whoever has it."""
    bench = Bench()
    held = bench.receive()
    bench.leases.start("a")
    slot: Any = held.slot
    bench.leases.requeue_unstarted()
    assert bench.driver.sent("requeue") == ["a"]
    assert granting.answer(bench.board, slot) is False
    assert not bench.leases.complete_first("a")


def taken(bench: Bench) -> None:
    bench.driver.expiries.clear()


def expired(bench: Bench) -> None:
    bench.clock.advance(bench.policy.extension)


def stopping(bench: Bench) -> None:
    bench.leases.intake.stop()


@pytest.mark.parametrize("what", [taken, expired, stopping])
def test_one_that_is_not_ours_to_start_is_not_started(what: Callable[[Bench], None]) -> None:
    """Whether the broker says so, the worker's own clock, or its shutdown."""
    bench = Bench()
    bench.receive()
    what(bench)
    assert not bench.leases.complete_first("a")
    assert bench.driver.count("complete") == (what is taken)


def test_an_answer_that_is_lost_is_asked_for_again() -> None:
    """Before the deadline nobody else can have taken it: then it was this one that ended it."""
    bench = Bench()
    bench.receive()
    complete, answers = bench.driver.complete, [Answer.UNKNOWN]

    def deaf_once(tags: Any) -> list[Answer]:
        done = complete(tags)
        return [answers.pop()] if answers else done

    bench.driver.complete = deaf_once  # type: ignore[method-assign]
    assert bench.leases.complete_first("a")
    assert bench.driver.count("complete") == 2


def test_without_an_answer_it_is_not_started_and_goes_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As soon as the broker answers again; until then no other start asks it."""
    bench = Bench()
    bench.receive("a"), bench.receive("b")
    bench.driver.silent = True
    assert not bench.leases.complete_first("a")
    assert not bench.leases.complete_first("b")
    assert bench.driver.count("complete") == 2
    assert [each.levelname for each in caplog.records] == ["ERROR", "ERROR"]
    bench.driver.silent = False
    assert bench.leases.outbox.again() == 0
    assert bench.driver.sent("requeue") == ["a", "b"]
