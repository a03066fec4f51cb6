"""The tasks of a soak, all leased or all plain: ``celery -A soak.app worker``."""

from __future__ import annotations

import gc
import heapq
import linecache
import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import psutil
from celery.exceptions import Reject
from celery.signals import worker_ready
from celery.worker.state import active_requests

from celery_lease import LeasedTask, current_context
from harness.ledger import record
from harness.rabbitmq import with_queue
from harness.setup import Setup

if TYPE_CHECKING:
    from celery import Task

#: In the environment: what the tasks are, and how many run at once.
KIND, CROWD = "HARNESS_SOAK_KIND", "HARNESS_SOAK_CROWD"

app = with_queue(Setup.from_env().app("soak"))
LEASED = os.environ.get(KIND) == "leased"
options: dict[str, Any] = {"base": LeasedTask} if LEASED else {"acks_late": True}
all_run = threading.Barrier(int(os.environ.get(CROWD, "1")))


def drop_cancelled_timers() -> None:
    """Have eventlet's hub do now what it does when more than half of 1,000 are cancelled.

    Each holds on to all that its green thread had, a connection for instance, until it is due.
    """
    if "eventlet" in sys.modules:
        hub = sys.modules["eventlet"].hubs.get_hub()
        hub.timers = [timer for timer in hub.timers if not timer[1].called]
        hub.next_timers = [timer for timer in hub.next_timers if not timer[1].called]
        heapq.heapify(hub.timers)
        hub.timers_canceled = 0


def sample(event: str, **facts: int) -> None:
    """Record what this process has by now."""
    drop_cancelled_timers()
    linecache.clearcache()  # of sources, which a first traceback of its kind fills
    gc.collect()
    process = psutil.Process()
    record(
        event,
        blocks=sys.getallocatedblocks(),
        memory=process.memory_info().rss,
        threads=process.num_threads(),
        descriptors=process.num_fds(),
        **facts,
    )


def _listen(**_: Any) -> None:
    signal.signal(signal.SIGUSR2, lambda *_: sample("main", active=len(active_requests)))


worker_ready.connect(_listen, weak=False)


@app.task(name="soak.look", **options)
def look() -> None:
    """Record what the task process has."""
    sample("task")


@app.task(name="soak.together", **options)
def together() -> None:
    """Wait for all others of a crowd, so that each takes the connections that it needs at once."""
    all_run.wait(60)
    if LEASED:
        current_context().checkpoint({"at": 1})


@app.task(name="soak.succeed", **options)
def succeed() -> str:
    """Do nothing."""
    return "done"


@app.task(name="soak.fail", **options)
def fail() -> None:
    """Fail."""
    raise ValueError("on purpose")


@app.task(name="soak.retry", bind=True, **options)
def retry(self: Task[Any, Any]) -> None:
    """Retry once, at once."""
    if not self.request.retries:
        raise self.retry(countdown=0)


@app.task(name="soak.reject", **options)
def reject() -> None:
    """Reject the message for good."""
    raise Reject("on purpose", requeue=False)


@app.task(name="soak.checkpoint", **options)
def checkpoint() -> None:
    """Save a checkpoint."""
    current_context().checkpoint({"at": 1})


@app.task(name="soak.progress", **options)
def progress() -> None:
    """Say how far it is."""
    for each in range(3):
        current_context().beat(each, 3, f"part {each}")


def lose() -> None:
    """Lose the lease by silence in the first delivery."""
    context = current_context()
    if context.deliveries == 1 and LEASED:
        time.sleep(1.5)
        context.beat()


short = {"lease_extension": 1, "lease_watchdog_threshold": 60} if LEASED else {}
app.task(name="soak.lose", **options, **short)(lose)
