"""Leased tasks beside plain ones at the other brokers, and the end of a worker there."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count as numbers
from typing import TYPE_CHECKING, Any

from benchmarks import brokers
from benchmarks.bench import moment
from benchmarks.brokers import EXTENSION, LEASED, LEASES, REAPER, Kind, NotInstalled, Servers
from benchmarks.figures import Figure
from benchmarks.throughput import BESIDE, in_turn, median_of_ratios

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.bench import Bench

#: No-op tasks of one drain; moto and PostgreSQL do fewer a second.
DRAINED = {"rabbitmq classic": 2000, "rabbitmq quorum": 2000, "pgmq": 1000, "sqs": 300}
KINDS = {
    "leased": Kind(task="benchmark.leased-start"),
    "plain": Kind(task="benchmark.plain-start", env=brokers.STOCK.env),
}
#: The part of a drain that does not count, at its begin and at its end.
EDGE = 0.1
_numbers = numbers(1)


def ratios(bench: Bench, pairs: int = 5, share: float = 1.0) -> list[Figure]:
    """Drain queues of no-op tasks in turn, leased and plain; *share* of the usual number."""
    with ExitStack() as stack:
        servers = Servers(bench.directory, stack)
        return [
            _ratio(servers, name, bench.directory, pairs, int(count * share))
            for name, count in DRAINED.items()
        ]


def ends(bench: Bench, runs: int = 3) -> list[Figure]:
    """Kill workers at SQS and pgmq, and extend the leases of one at SQS."""
    figures = []
    with ExitStack() as stack:
        servers = Servers(bench.directory, stack)
        for name in ("sqs", "pgmq"):
            note, each = "", list[float | None]()
            where = [_own(bench.directory) for _ in range(runs)]
            try:
                each += [brokers.kill(servers, name, LEASED, path) for path in where]
            except NotInstalled as exc:
                note = str(exc)
            figures.append(
                Figure(
                    name=f"killed worker to task restarted elsewhere, {name} "
                    f"(extension {EXTENSION:g} s, reaper {REAPER:g} s)",
                    unit="s",
                    target=EXTENSION + REAPER + 1,
                    measured=None if note else max(took or brokers.PATIENCE for took in each),
                    digits=1,
                    note=note,
                    details={"each": each},
                )
            )
        figures.append(
            Figure(
                name=f"extending {LEASES:,} leases of one worker, sqs, in batches of 10",
                unit="s",
                target=2,
                measured=brokers.extend(servers, "sqs", rounds=3) / 1000,
                digits=2,
            )
        )
    return figures


def _ratio(servers: Servers, name: str, directory: Path, pairs: int, count: int) -> Figure:
    rates: dict[str, list[float]] = {kind: [] for kind in KINDS}
    note = ""
    try:
        for kind, _ in in_turn(KINDS, pairs):
            rates[kind].append(drained(servers, name, KINDS[kind], directory, count).rate)
    except NotInstalled as exc:
        note = str(exc)
    return Figure(
        name=f"throughput of no-op leased tasks, {name}, {BESIDE}",
        unit="x plain",
        target=0.95,
        measured=None if note else median_of_ratios(rates["leased"], rates["plain"]),
        at_least=True,
        digits=2,
        note=note,
        details={"tasks": count, **rates},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """What one drain took, without its begin and its end."""

    rate: float  #: tasks that the worker starts in a second
    sent: float  #: seconds of the server's processors for sending a message
    #: the same for its delivery and its end; None if all started between two looks
    served: float | None


def drained(servers: Any, name: str, kind: Kind, directory: Path, count: int) -> Drain:
    """Send messages, then let a new worker run them."""
    server = brokers.server_of(name, servers)
    with brokers.staged(servers, name, kind, _own(directory)) as stage:
        stage.send(1)  # makes the queue
        began = server.computed()
        stage.send(count)
        sent = server.computed() - began
        stage.worker(prefetch=4, concurrency=2)
        edge, starts = int(count * EDGE), stage.fleet.ledger
        looks = []
        for enough in (edge, count - edge):
            moment(lambda: starts.count("start") >= enough, brokers.PATIENCE, every=0.1)  # noqa: B023
            looks.append((server.computed(), starts.count("start")))
        moment(lambda: starts.count("start") > count, brokers.PATIENCE, every=0.25)
        times = sorted(entry.at for entry in starts.entries("start"))[edge:-edge]
    (used, first), (used_then, last) = looks
    return Drain(
        rate=(len(times) - 1) / (times[-1] - times[0]),
        sent=sent / count,
        served=(used_then - used) / (last - first) if last > first else None,
    )


def _own(directory: Path) -> Path:
    return directory / f"broker-{next(_numbers)}"
