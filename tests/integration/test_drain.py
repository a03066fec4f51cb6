"""``lease_drain``: a worker that takes no more, finishes what it runs, and stays up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
from kombu import pools

from harness.stage import RedisStage
from harness.waiting import always, eventually
from harness.workers import TESTS

if TYPE_CHECKING:
    from harness.brokers import RedisServer
    from harness.setup import Setup
    from harness.workers import Worker, WorkerFleet


class Stage(RedisStage):
    """Workers that are told to drain."""

    program = "shutdown"
    conf: ClassVar[dict[str, Any]] = {"lease_extension": 6, "worker_prefetch_multiplier": 4}

    def state(self, worker: Worker) -> dict[str, Any]:
        """Return what ``inspect lease_state`` says of a worker; nothing if it is silent."""
        inspect = self.app.control.inspect(destination=[worker.hostname], timeout=3, limit=1)
        replies: Any = inspect._request("lease_state") or {}
        return dict(replies.get(worker.hostname, {"draining": None}))

    def celery(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a ``celery -A ...`` command to its end."""
        path = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))
        return subprocess.run(
            [sys.executable, "-m", "celery", "-A", self.module, *arguments],
            env={**os.environ, **self.setup.env(), "PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


@pytest.fixture
def stage(setup: Setup, valkey: RedisServer, fleet: WorkerFleet) -> Stage:
    """Return an empty broker."""
    return Stage(setup, valkey, fleet)


@pytest.mark.compat
@pytest.mark.parametrize(
    ("pool", "concurrency"), [("prefork", 1), ("threads", 1), ("gevent", 2), ("eventlet", 2)]
)
def test_a_drained_worker_gives_back_what_waits_and_goes_on_when_told(
    stage: Stage, pool: str, concurrency: int
) -> None:
    """Prefetched, rate limited, ETA, in the pool's queue: all back; what runs ends and is
    acknowledged; what comes, plain or leased, is left alone until the worker goes on.
    """
    worker = stage.worker(pool, concurrency)
    running = stage.send("beats", 6)
    stage.ledger.wait("start", running)
    if pool in {"prefork", "threads"}:  # a green worker takes no more than it can run
        stage.send("limited"), stage.send("limited"), stage.send("beats", 0, countdown=600)
    stage.send("beats", 0, countdown=601)
    waiting = 4 if pool in {"prefork", "threads"} else 1
    eventually(lambda: stage.queued == 0, 10, what="messages are taken")
    stage.app.control.broadcast("lease_drain", destination=[worker.hostname])
    eventually(lambda: (stage.queued, stage.held) == (waiting, 1), 5, what="what waits is back")
    assert stage.ledger.count("end") == 0
    stage.redis.delete("celery")
    stage.ledger.wait("end", running)
    eventually(lambda: stage.held == 0)
    state = stage.state(worker)
    assert (state["draining"], state["ready"], state["leases"]) == (True, False, 0)
    plain, leased = stage.send("plain", 0), stage.send("beats", 0)
    assert always(lambda: stage.queued == 2, 2.5)
    stage.app.control.broadcast("lease_resume", destination=[worker.hostname])
    many = [stage.send("beats", 0) for _ in range(12)]  # more than what the window has places
    for task_id in (plain, leased, *many):
        stage.ledger.wait("end", task_id)
    state = stage.state(worker)
    assert (state["draining"], state["ready"]) == (False, True)
    eventually(lambda: stage.queued + stage.held == 0)


def test_a_drained_worker_that_does_not_prefetch_leaves_messages_alone(stage: Stage) -> None:
    """Celery 5.7 asks by a function of its own then; the message went round without end."""
    worker = stage.having(worker_disable_prefetch=True).worker()
    stage.app.control.broadcast("lease_drain", destination=[worker.hostname])
    eventually(lambda: stage.state(worker)["draining"])
    waiting = stage.send("beats", 0)
    assert always(lambda: (stage.queued, stage.held) == (1, 0), 2)
    stage.app.control.broadcast("lease_resume", destination=[worker.hostname])
    stage.ledger.wait("end", waiting)
    (start,) = stage.ledger.entries("start", waiting)
    assert start.facts.get("deliveries", 1) == 1


def test_a_drain_outlives_the_connection(stage: Stage) -> None:
    """The worker reconnects and still takes nothing; told to stop, it stops."""
    worker = stage.worker()
    running = stage.send("beats", 6)
    stage.ledger.wait("start", running)
    stage.app.control.broadcast("lease_drain", destination=[worker.hostname])
    eventually(lambda: stage.state(worker)["draining"])
    for kind in ("normal", "pubsub"):  # the second one listens for remote control
        stage.redis.client_kill_filter(_type=kind, skipme=True)
    pools.reset()  # the test's own connections were among them
    stage.app = stage.setup.app()
    worker.wait_log("Connection to broker lost")
    waiting = stage.send("beats", 0)
    eventually(lambda: stage.state(worker)["draining"], 20)
    stage.ledger.wait("end", running)
    assert stage.ledger.count("start", running) == 1
    assert always(lambda: stage.queued == 1, 2)
    worker.term()
    assert worker.wait() == 0
    assert stage.queued == 1
    assert stage.ledger.count("start", waiting) == 0


def test_a_worker_that_cannot_drain_yet_is_named(stage: Stage) -> None:
    """A solo worker whose task runs says that it is there, and drains when the task is over."""
    busy = stage.worker("solo")
    running = stage.send("beats", 60)
    stage.ledger.wait("start", running)
    other = stage.worker()
    ask = {"destination": [busy.hostname], "reply": True}
    eventually(lambda: stage.app.control.broadcast("stats", {"leases": True}, **ask))
    done = stage.celery("lease", "drain", "-t", "3")
    assert (done.returncode, done.stdout) == (1, f"{other.hostname}: draining\n"), done.stderr
    assert f"{busy.hostname}: no reply within 3 s" in done.stderr


def test_operators_drain_by_command(stage: Stage) -> None:
    """``celery lease drain``: the one named, the reply, exit code 1 for a worker that is silent;
    ``celery inspect lease_state`` knows how far it is.
    """
    first, second = stage.worker(), stage.worker()
    done = stage.celery("lease", "drain", "-d", first.hostname, "-t", "20")
    assert (done.returncode, done.stdout) == (0, f"{first.hostname}: draining\n"), done.stderr
    assert [stage.state(each)["draining"] for each in (first, second)] == [True, False]
    asked = stage.celery("inspect", "lease_state", "--json", "-d", first.hostname, "-t", "5")
    assert json.loads(asked.stdout)[first.hostname]["draining"] is True, asked.stderr
    done = stage.celery("lease", "drain", "--resume", "-d", first.hostname, "-t", "20")
    assert (done.returncode, done.stdout) == (0, f"{first.hostname}: taking messages\n")
    assert not stage.state(first)["draining"]
    done = stage.celery("lease", "drain", "-d", "nobody@nowhere", "-t", "0.5")
    assert done.returncode == 1
    assert "nobody@nowhere: no reply within 0.5 s" in done.stderr
