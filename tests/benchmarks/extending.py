"""Extending many leases of one worker at once."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Any

from kombu import Connection, Producer, Queue

from benchmarks.figures import Figure
from celery_lease.brokers.redis.driver import PIECE
from celery_lease.core.delivery import Answer, Renewal
from harness.lease_desk import Desk

if TYPE_CHECKING:
    from benchmarks.bench import Bench

SECONDS = 300.0


def round_trip(bench: Bench, leases: int = 1000, rounds: int = 30) -> Figure:
    """Claim messages as a worker does, then extend all of them, some times."""
    url = bench.server.fresh_url()
    with Connection(url) as connection:
        Queue("q")(connection.default_channel).declare()
        producer = Producer(connection)
        for number in range(leases):
            producer.publish(number, routing_key="q")
    with Desk(url, seconds=SECONDS) as desk:
        messages = desk.receive(leases, within=60)
        renewals = [Renewal(message.claim.tag, SECONDS) for message in messages]
        _extend(desk, renewals)
        before = _calls(bench)
        took = sorted(_extend(desk, renewals) for _ in range(rounds))
        calls = (_calls(bench) - before) / rounds
    if calls != -(-leases // PIECE):
        raise RuntimeError(f"{calls} calls for one extension of {leases} leases")
    return Figure(
        name=f"extending {leases:,} leases of one worker, in one round trip",
        unit="ms",
        target=10,
        measured=statistics.median(took),
        digits=1,
        details={"best": took[0], "worst": took[-1], "calls_each": calls},
    )


def _extend(desk: Desk, renewals: list[Renewal]) -> float:
    """Return the milliseconds that it took to extend all."""
    started = time.perf_counter()
    answers = desk.driver.extend(renewals, timeout=5.0)
    took = (time.perf_counter() - started) * 1000
    if answers != [Answer.HELD] * len(renewals):
        raise RuntimeError("not all leases were extended")
    return took


def _calls(bench: Bench) -> int:
    """Return how many script calls the server has seen."""
    with bench.server.client() as client:
        stats: dict[str, Any] = client.info("commandstats")
    return int(stats.get("cmdstat_evalsha", {}).get("calls", 0))
