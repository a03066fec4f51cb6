"""``lease_cancel``: a task is told at its next beat, cleans up, and ends as revoked."""

from __future__ import annotations

import socket
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import psutil
import pytest
from celery import states
from celery.exceptions import TaskRevokedError, TimeLimitExceeded

from harness.shell import Shell
from harness.stage import RedisStage
from harness.waiting import eventually

if TYPE_CHECKING:
    from harness.brokers import RedisServer
    from harness.setup import Setup
    from harness.workers import Worker, WorkerFleet

LONG = 60


class Stage(RedisStage):
    """The tasks that are cancelled, and those who cancel them."""

    program = "views"
    conf: ClassVar[dict[str, Any]] = {
        "lease_extension": 6,
        "worker_send_task_events": True,
        "lease_shutdown_timeout": 6,
    }

    def worker(self, *args: Any, **options: Any) -> Worker:
        """Start a worker and return it when it hears commands: a moment after it is ready."""
        worker = super().worker(*args, **options)
        ask = {"destination": [worker.hostname], "timeout": 0.5}
        eventually(lambda: self.app.control.ping(**ask), what=f"{worker.hostname} hears commands")
        return worker

    def start(self, task: str, *args: Any, **options: Any) -> str:
        """Send a task and return when it runs."""
        task_id = self.send(task, *args, **options)
        self.ledger.wait("start", task_id)
        return task_id

    def cancel(self, worker: Worker, *task_ids: str) -> dict[str, Any]:
        """Cancel tasks by one worker and return what it did about each."""
        replies: Any = self.app.control.broadcast(
            "lease_cancel",
            {"task_id": list(task_ids)},
            destination=[worker.hostname],
            reply=True,
            timeout=10,
        )
        assert len(replies) == 1, f"{worker.hostname} did not answer: {worker.log}"
        tasks: dict[str, Any] = replies[0][worker.hostname]["tasks"]
        return {task_id: tasks[task_id]["state"] for task_id in task_ids}

    def is_revoked(self, task_id: str, reason: str = "cancelled") -> bool:
        result = self.app.AsyncResult(task_id)
        with pytest.raises(TaskRevokedError, match=reason):
            result.get(timeout=10)
        return bool(result.state == states.REVOKED)

    def wait_released(self, task_id: str, error: str, status: str) -> None:
        """Wait for both hooks of a task, each of which is called once."""
        self.ledger.wait("after_return", task_id, within=30.0)
        called = {
            name: [each.facts for each in self.ledger.entries(name, task_id)]
            for name in ("on_failure", "after_return")
        }
        assert called == {"on_failure": [{"error": error}], "after_return": [{"status": status}]}

    def wait_settled(self) -> None:
        eventually(lambda: self.queued + self.held == 0)


@pytest.fixture
def stage(setup: Setup, valkey: RedisServer, fleet: WorkerFleet) -> Stage:
    """Return an empty broker."""
    return Stage(setup, valkey, fleet)


@pytest.mark.compat
@pytest.mark.parametrize(
    ("pool", "concurrency"),
    [("prefork", 1), ("threads", 1), ("gevent", 1), ("eventlet", 1), ("solo", 1)],
)
def test_a_cancelled_task_cleans_up_and_is_revoked(
    stage: Stage, pool: str, concurrency: int
) -> None:
    """Told within a beat, in every pool; acknowledged, no callback, and the worker goes on."""
    worker = stage.worker(pool, concurrency)
    callback = stage.app.signature("views.after")
    running = stage.start("work", LONG, link=callback, link_error=callback)
    assert stage.cancel(worker, running) == {running: "told"}
    assert stage.is_revoked(running)
    stage.ledger.wait("cleaned", running)
    stage.wait_settled()
    assert stage.app.AsyncResult(stage.start("work", 0.1)).get(timeout=10) == "done"
    assert stage.ledger.count("after") == 0
    assert "Traceback" not in worker.log


def test_a_worker_whose_loop_is_its_task_is_found_and_cancels(stage: Stage) -> None:
    """By commands that ask all workers which of them have leases."""
    worker = stage.worker("solo")
    running = stage.start("work", LONG)
    shell = Shell(stage.app)
    assert f"views.work  {running}  {worker.hostname}" in shell("status", "-t", "3")
    said = shell("cancel", running, "-t", "3")
    assert said.startswith(
        f"views.work[{running}] on {worker.hostname}: its next beat raises TaskCancelled"
    )
    assert stage.is_revoked(running)


def test_what_waits_is_revoked_at_once(stage: Stage) -> None:
    """Prefetched, or until its ETA: settled now; what is elsewhere is refused when it comes."""
    worker = stage.worker()
    running = stage.start("work", LONG)
    waiting, eta = stage.send("work", 0), stage.send("work", 0, countdown=600)
    eventually(lambda: stage.queued == 0)
    elsewhere = "not-sent-yet"
    assert stage.cancel(worker, waiting, eta, elsewhere) == {
        waiting: "revoked",
        eta: "revoked",
        elsewhere: "unknown",
    }
    assert stage.is_revoked(waiting, "revoked")
    assert stage.is_revoked(eta, "revoked")
    assert stage.held == 1
    stage.send("work", 0, task_id=elsewhere)
    assert stage.cancel(worker, running) == {running: "told"}
    assert stage.is_revoked(elsewhere, "revoked")
    stage.wait_settled()
    assert stage.ledger.count("start") == 1


def test_how_a_task_takes_it(stage: Stage) -> None:
    """Caught and returned: that counts. Retried: revoked all the same. Deaf or plain: said so."""
    worker = stage.worker(concurrency=4)
    names = ("stubborn", "retries", "deaf", "plain")
    seconds = (LONG, LONG, 4, 4)
    ids = {name: stage.start(name, each) for name, each in zip(names, seconds, strict=True)}
    done = stage.cancel(worker, *ids.values())
    assert [done[ids[name]] for name in names] == ["told", "told", "told", "plain"]
    assert stage.app.AsyncResult(ids["stubborn"]).get(timeout=10) == "in part"
    assert stage.is_revoked(ids["retries"])
    for name in ("deaf", "plain"):
        assert stage.app.AsyncResult(ids[name]).get(timeout=10) is None
    stage.wait_settled()
    assert stage.ledger.count("start") == 4


@pytest.mark.compat
@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_task_that_is_over_without_success_releases_its_locks(stage: Stage, pool: str) -> None:
    """By its hooks: cancelled while it waits, and while it runs."""
    worker = stage.worker(pool)
    running = stage.start("locked", LONG)
    waiting = stage.send("locked", LONG, countdown=600)
    eventually(lambda: stage.queued == 0)
    assert stage.cancel(worker, waiting, running) == {waiting: "revoked", running: "told"}
    for each in (waiting, running):
        stage.wait_released(each, "TaskRevokedError", "REVOKED")


@pytest.mark.parametrize(("pool", "concurrency"), [("prefork", 1), ("threads", 2)])
def test_a_task_that_is_given_up_or_cancelled_at_the_last_releases_its_locks(
    stage: Stage, pool: str, concurrency: int
) -> None:
    """A dead letter's hooks are called by the main process; a worker that stops cancels, too."""
    worker = stage.worker(pool, concurrency)
    given_up = stage.start("silent", 9)
    stage.wait_released(given_up, "TooManyDeliveries", "FAILURE")
    assert stage.ledger.count("start", given_up) == 1
    last = stage.start("locked", LONG)
    worker.term()
    worker.wait_log("Warm shutdown")
    assert stage.cancel(worker, last) == {last: "told"}
    stage.wait_released(last, "TaskRevokedError", "REVOKED")
    assert worker.wait(10) == 0


@pytest.mark.compat
@pytest.mark.parametrize("pool", ["prefork", "gevent"])  # no other has time limits
def test_hooks_that_fail_at_a_hard_time_limit_keep_nothing(stage: Stage, pool: str) -> None:
    """Neither the task's process nor its message, and the worker goes on."""
    worker = stage.worker(pool)
    limited = stage.start("limited", LONG)
    with pytest.raises(TimeLimitExceeded):
        stage.app.AsyncResult(limited).get(timeout=20)
    stage.wait_settled()
    (began,) = stage.ledger.entries("start", limited)
    eventually(lambda: pool != "prefork" or not psutil.pid_exists(began.pid))
    worker.wait_log("Hard time limit (2s) exceeded")
    assert worker.log.count("Hard time limit (2s) exceeded") == 1
    assert worker.log.count(" of task views.limited[") == 2
    assert stage.app.AsyncResult(stage.start("work", 0.1)).get(timeout=10) == "done"


def test_operators_cancel_by_command(stage: Stage) -> None:
    """What comes of each task, what to do about those that cannot be told, and the exit code."""
    worker, shell = stage.worker(concurrency=3), Shell(stage.app)
    running, plain = stage.start("work", LONG), stage.start("plain", 20)
    deaf, over = stage.start("deaf", 20), stage.send("stubborn", 0)
    said = shell("cancel", running, "--wait", "20", "-t", "3")
    assert f"views.work[{running}] on {worker.hostname}: its next beat raises TaskCancelled" in said
    assert stage.app.AsyncResult(running).state == states.REVOKED
    assert stage.app.AsyncResult(over).get(timeout=10) == "done"
    done = shell.result("cancel", plain, deaf, over, "no-such-task", "-t", "3")
    assert done.exit_code == 1
    assert f"in lease_mode 'daemon'. To end it: celery control terminate SIGTERM {deaf}" in (
        done.stdout
    )
    lines = done.stderr.splitlines()
    assert len(lines) == 3
    assert lines[0].endswith(f"celery control terminate SIGTERM {plain}")
    assert lines[1] == f"{over}: is over already: SUCCESS"
    assert lines[2].startswith("no-such-task: not found at the 1 worker that replied")


def test_no_other_task_is_cancelled_than_the_one_named(stage: Stage) -> None:
    """An app's own id may begin another; and a shell's empty variable begins them all."""
    stage.worker()
    shell = Shell(stage.app)
    own = stage.send("work", 0, task_id="report-10", countdown=600)
    usual = stage.start("work", LONG)
    eventually(lambda: stage.queued == 0)
    assert "report-1: not found at the 1 worker" in shell.fails("cancel", "report-1", "-t", "3")
    for each in ("cancel", "hand-over", "stack", "explain"):
        assert "a task id is empty" in shell.fails(each, "", "-t", "3")
    assert stage.held == 2
    assert own in shell("cancel", own, "-t", "3")
    assert usual in shell("cancel", usual[:8], "-t", "3")
    assert stage.is_revoked(usual)


def test_a_stopping_worker_still_cancels(stage: Stage) -> None:
    """After SIGTERM, when Celery's own mailbox is closed already; the worker ends at once then."""
    worker = stage.worker()
    eventually(lambda: stage.listeners() == 2, what="Celery's mailbox, and its gossip")
    running = stage.start("work", LONG)
    eventually(lambda: stage.listeners() == 3, what="the second mailbox, half a second on")
    worker.term()
    worker.wait_log("Warm shutdown")
    assert stage.cancel(worker, running) == {running: "told"}
    assert stage.is_revoked(running)
    assert worker.wait(10) == 0
    assert "1 completed" in worker.log
    assert stage.held == 0


@pytest.mark.parametrize("pool", ["threads", "solo"])
def test_a_stopping_worker_s_last_task_is_seen_to_end(stage: Stage, pool: str) -> None:
    """The worker exits at once then, and does not say that the task is over: its result does."""
    worker, shell = stage.worker(pool), Shell(stage.app)
    running = stage.start("work", LONG)
    eventually(lambda: stage.listeners() == 3, what="both mailboxes, and its gossip")
    worker.term()
    worker.wait_log("Warm shutdown")
    assert "its next beat raises" in shell("cancel", running, "--wait", "20", "-t", "3")
    assert stage.is_revoked(running)
    assert worker.wait(10) == 0


def test_a_result_backend_that_hangs_does_not_hold_up_a_command(stage: Stage) -> None:
    """Celery's Redis waits for two minutes, for each task."""
    stage.worker()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}/0"
        shell, began = Shell(replace(stage.setup, backend=url).app()), time.monotonic()
        assert "no-such-task: not found" in shell.fails("cancel", "no-such-task", "-t", "3")
        assert "result backend says nothing" in shell.fails("explain", "no-such-task", "-t", "3")
        assert time.monotonic() - began < 60.0


def test_a_task_whose_holder_died_is_cancelled_by_whoever_gets_it(stage: Stage) -> None:
    """Nobody holds it when the command comes; the next holder has heard of it."""
    stage.setup = stage.setup.having(lease_extension=3, lease_shutdown_timeout=3)
    first = stage.worker()
    running = stage.start("work", LONG)
    second = stage.worker()
    first.kill()
    assert stage.cancel(second, running) == {running: "unknown"}
    assert stage.is_revoked(running, "revoked")
    stage.wait_settled()
    assert stage.ledger.count("start", running) == 1
