"""The workers' app: each task once under a lease and once as a plain late-ack task.

``celery -A benchmarks.app worker``. With ``BENCHMARK_PLAIN`` set, celery-lease is not imported.
"""

from __future__ import annotations

import os
import time
from itertools import repeat
from typing import TYPE_CHECKING, Any

from harness.app import app
from harness.ledger import record
from harness.rabbitmq import with_queue

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_lease import ToolContext

PLAIN = "BENCHMARK_PLAIN"

with_queue(app)


@app.task(name="benchmark.plain", acks_late=True, reject_on_worker_lost=True, ignore_result=True)
def plain() -> None:
    """Do nothing, as a plain late-ack task."""


@app.task(name="benchmark.plain-start", bind=True, acks_late=True, ignore_result=True)
def plain_start(self: Any) -> None:
    """Note when it started, as a plain late-ack task."""
    record("start", self.request.id, self.request.hostname)


@app.task(name="benchmark.pause", bind=True, acks_late=True, ignore_result=True)
def pause(self: Any, seconds: float) -> None:
    """Keep one process of the pool busy, recorded in the ledger."""
    record("start", self.request.id, self.request.hostname)
    time.sleep(seconds)


if not os.environ.get(PLAIN):
    from celery_lease import LeasedTask

    @app.task(name="benchmark.leased", base=LeasedTask, ignore_result=True)
    def leased() -> None:
        """Do nothing, under a lease."""

    @app.task(name="benchmark.leased-start", bind=True, base=LeasedTask, ignore_result=True)
    def leased_start(self: Any) -> None:
        """Note when it started, under a lease."""
        record("start", self.request.id, self.request.hostname)

    @app.task(name="benchmark.beats", base=LeasedTask)
    def beats(batches: int, size: int, *, context: ToolContext) -> list[float]:
        """Return the seconds that each batch of beats took."""
        return [time_beats(context.beat, size) for _ in range(batches)]

    @app.task(name="benchmark.progress", base=LeasedTask)
    def progress(batches: int, size: int, *, context: ToolContext) -> dict[str, list[float]]:
        """Return the seconds that each batch of beats with progress took, and of tracked items."""

        def beat() -> None:
            for done in range(size):
                context.beat(done, size)

        def track() -> None:
            for _ in context.track(range(size)):
                pass

        return {
            "beat": [seconds_of(beat) for _ in range(batches)],
            "item": [seconds_of(track) for _ in range(batches)],
        }

    @app.task(name="benchmark.work", bind=True, base=LeasedTask, ignore_result=True)
    def work(self: Any, seconds: float, *, context: ToolContext) -> None:
        """Beat ten times a second, recorded in the ledger."""
        record("start", self.request.id, self.request.hostname)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            context.beat()
            time.sleep(0.1)

    if str(app.conf.broker_url).startswith("redis"):  # not every broker has keys

        @app.task(
            name="benchmark.keyed",
            bind=True,
            base=LeasedTask,
            lease_key="one",
            ignore_result=True,
        )
        def keyed(_self: Any) -> None:
            """Do nothing, under a lease and an exclusive key that nobody else wants."""

        @app.task(
            name="benchmark.one-by-one",
            bind=True,
            base=LeasedTask,
            lease_key="one:{seconds}",
            ignore_result=True,
        )
        def one_by_one(self: Any, seconds: float) -> None:
            """Keep one process busy, recorded, and no other task of the key at once."""
            record("start", self.request.id, self.request.hostname)
            time.sleep(seconds)
            record("end", self.request.id, self.request.hostname)


def time_beats(beat: Any, size: int) -> float:
    """Return the seconds that some calls take, the loop included."""

    def beats() -> None:
        for _ in repeat(None, size):
            beat()

    return seconds_of(beats)


def seconds_of(call: Callable[[], None]) -> float:
    """Return the seconds that a call takes."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started
