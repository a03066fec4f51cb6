"""One point of the growth: so many workers with so many leases each, on an empty server."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from growth.fleet import POLICY, Fleet

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.brokers import RedisServer


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """What was measured at one size; rates are for a second, of all workers together."""

    workers: int
    leases: int  #: of each worker
    commands: float
    renewals: float
    failed: int  #: extensions that were not answered, and leases that were lost
    server_cpu: float  #: share of one processor, in percent, the system's part included
    script_micros: float  #: microseconds of one extension script
    keeper_cpu: float  #: share of one processor that each worker's keeper took, in percent
    lag_median: float  #: seconds from when an extension was due to its answer
    lag_worst: float  #: the same, 99.9 %
    answer: float  #: milliseconds for an answer, 99 %
    bytes_each: float  #: the server's memory for one lease, its message of 600 bytes included

    @property
    def all_leases(self) -> int:
        return self.workers * self.leases


@dataclass(frozen=True, slots=True)
class _Reading:
    at: float
    cpu: float
    calls: int
    micros: float
    memory: int

    @classmethod
    def of(cls, server: RedisServer) -> _Reading:
        with server.client() as client:
            info: dict[str, Any] = client.info("everything")
        script = info.get("cmdstat_evalsha", {"calls": 0, "usec": 0})
        return cls(
            time.monotonic(),
            info["used_cpu_sys"] + info["used_cpu_user"],
            script["calls"],
            script["usec"],
            info["used_memory"],
        )


def measure(server: RedisServer, workers: int, leases: int, seconds: float) -> Point:
    """Measure one point; takes the interval twice on top of *seconds*."""
    with server.client() as client:
        client.flushall()
    empty = _Reading.of(server)
    fleet = Fleet(server.url(), workers, leases, seconds)
    fleet.measure_from_here()
    before = _Reading.of(server)
    notes = fleet.notes()
    after = _Reading.of(server)
    took, calls = after.at - before.at, after.calls - before.calls
    lags = [lag for each in notes for lag in each.lags]
    waits = [wait for each in notes for wait in each.waits]
    return Point(
        workers=workers,
        leases=leases,
        commands=sum(each.calls for each in notes) / seconds,
        renewals=sum(each.renewals for each in notes) / seconds,
        failed=sum(each.failed + each.lost for each in notes),
        server_cpu=100 * (after.cpu - before.cpu) / took,
        script_micros=(after.micros - before.micros) / max(calls, 1),
        keeper_cpu=100 * statistics.fmean(each.cpu / each.wall for each in notes),
        lag_median=_at(lags, 0.5),
        lag_worst=_at(lags, 0.999),
        answer=1000 * _at(waits, 0.99),
        bytes_each=(before.memory - empty.memory) / (workers * leases),
    )


def _at(values: Sequence[float], share: float) -> float:
    line = sorted(values) or [float("nan")]
    return line[min(len(line) - 1, int(len(line) * share))]


def costs(points: Sequence[Point]) -> tuple[float, float, float]:
    """Fit server CPU = fixed + a x commands + b x renewals; return %, and a and b in microseconds.

    By least squares on the relative error, so that small points count as much as large ones.
    """
    rows = [((1.0, p.commands, p.renewals), p.server_cpu) for p in points]
    weights = [1 / max(p.server_cpu, 0.1) ** 2 for p in points]
    normal = [
        [sum(w * r[i] * r[j] for w, (r, _) in zip(weights, rows, strict=True)) for j in range(3)]
        for i in range(3)
    ]
    right = [sum(w * r[i] * y for w, (r, y) in zip(weights, rows, strict=True)) for i in range(3)]
    fixed, a, b = _solve(normal, right)
    return fixed, a * 1e4, b * 1e4


def _solve(matrix: list[list[float]], right: list[float]) -> list[float]:
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    for i in range(len(rows)):
        pivot = max(range(i, len(rows)), key=lambda k: abs(rows[k][i]))
        rows[i], rows[pivot] = rows[pivot], rows[i]
        for k in range(len(rows)):
            if k != i:
                factor = rows[k][i] / rows[i][i]
                rows[k] = [x - factor * y for x, y in zip(rows[k], rows[i], strict=True)]
    return [row[-1] / row[i] for i, row in enumerate(rows)]


def paper(a: float, b: float, workers: int, interval: float) -> float:
    """Return the leases that one server holds at half a processor, on paper.

    Args:
        a: Microseconds of a command; a worker sends two a second at most, whatever it holds.
        b: Microseconds of an extension.
        workers: How many there are.
        interval: Seconds between two extensions of a lease.
    """
    left = 0.5e6 - workers * 2 * a
    return max(0.0, left / b * interval)


def default_interval() -> float:
    """Return the interval that was measured with, in seconds."""
    return POLICY.interval
