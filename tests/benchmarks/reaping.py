"""How soon the messages of many dead workers are back, and how long a script takes meanwhile."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

import psutil
from kombu import Connection, Producer, Queue

from benchmarks.bench import moment
from benchmarks.figures import Figure
from harness.lease_desk import Desk

if TYPE_CHECKING:
    from collections.abc import Iterator

    import redis

    from benchmarks.bench import Bench
    from harness.brokers import RedisServer

EXTENSION, REAPER = 15.0, 10.0
#: Leases that are made by claiming messages; the others are copies of them.
CLAIMED = 1000
#: Seconds in which all are copied; then they expire at the same moment.
COPYING = 30.0
#: Microseconds of a command that the server remembers.
SLOW = 1000
#: The server's niceness meanwhile, for those who may set it.
PREFERRED = -15


def dead_leases(bench: Bench, count: int = 100_000, copying: float = COPYING) -> list[Figure]:
    """Let all leases of dead workers expire at once, beside a task that beats."""
    conf = {"lease_extension": EXTENSION, "lease_reaper_interval": REAPER}
    with _preferred(bench.server), bench.scene("reaping", **conf) as scene:
        scene.worker()
        scene.publish("benchmark.work", 1, 600.0)
        starts = scene.fleet.ledger.wait("start")
        expiry = time.time() + copying
        _hold(scene.setup.broker, scene.client, count, expiry)
        scene.client.config_set("slowlog-log-slower-than", SLOW)
        scene.client.config_set("slowlog-max-len", 10_000)
        scene.client.slowlog_reset()
        if time.time() > expiry:
            raise RuntimeError("copying the leases took too long")
        moment(lambda: scene.waiting("dead") == count, within=copying + 300, every=0.05)
        back = time.time() - expiry
        slow = [each for each in scene.client.slowlog_get(10_000) if b"EVAL" in each["command"]]
        if scene.fleet.ledger.entries("start") != starts or scene.unacked() != 1:
            raise RuntimeError("the task beside them lost its lease")
    return [
        Figure(
            name=f"{count:,} expired leases of dead workers: the last message is back "
            f"(reaper {REAPER:g} s)",
            unit="s",
            target=REAPER + 30,
            measured=back,
            digits=1,
        ),
        Figure(
            name="the same: the longest script",
            unit="ms",
            target=5,
            measured=max((each["duration"] for each in slow), default=SLOW) / 1000,
            digits=1,
            details={f"scripts over {SLOW} us": len(slow)},
        ),
    ]


@contextlib.contextmanager
def _preferred(server: RedisServer) -> Iterator[None]:
    """Let the server compute first: its log counts what others take of its processor, too.

    Its main thread, that is, which runs the scripts.
    """
    process = psutil.Process(server.pid)
    nice = process.nice()
    with contextlib.suppress(psutil.AccessDenied):
        process.nice(PREFERRED)
    try:
        yield
    finally:
        process.nice(nice)


def _hold(url: str, client: redis.Redis, count: int, expiry: float) -> None:
    """Have so many messages held by nobody who lives."""
    claimed = min(CLAIMED, count)
    with Connection(url) as connection:
        Queue("dead")(connection.default_channel).declare()
        producer = Producer(connection)
        for number in range(claimed):
            producer.publish(number, routing_key="dead")
    with Desk(url, "dead", seconds=600.0) as desk:
        tags = [message.claim.tag for message in desk.receive(claimed, within=60)]
        kept = {name: client.hgetall(name) for name in ("unacked", "unacked.claims")}
    client.delete("dead")  # what the desk has returned
    for number in range(count // claimed):
        copies = [f"{tag}-{number}" for tag in tags]
        with client.pipeline(transaction=False) as pipe:
            for name in ("unacked_index", "unacked.leases"):
                pipe.zadd(name, dict.fromkeys(copies, expiry))
            for name, values in kept.items():
                for tag, copy in zip(tags, copies, strict=True):
                    pipe.hset(name, copy, values[tag.encode()])
            pipe.execute()
