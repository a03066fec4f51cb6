"""One point of the growth: so many workers with so many leases each, on a queue of their own."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.brokers import server_of
from growth import holding
from growth.fleet import Fleet
from harness.brokers import RedisServer
from harness.places import place_of
from harness.postgres import PostgresServer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.processes import LocalProcess


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """What was measured at one size; rates are for a second, of all workers together."""

    broker: str
    workers: int
    leases: int  #: of each worker
    calls: float
    renewals: float
    failed: int  #: extensions that were not answered, and leases that were lost
    server_cpu: float  #: share of one processor, in percent, the system's part included
    keeper_cpu: float  #: share of one processor that each worker's keeper took, in percent
    lag: float | None  #: seconds from when an extension was due to its answer, 99.9 %
    bytes_each: float | None  #: at the server for one lease, its message of 600 bytes included

    @property
    def all_leases(self) -> int:
        return self.workers * self.leases


def measure(
    servers: Any, broker: str, workers: int, leases: int, seconds: float, *, quiet: bool = False
) -> Point:
    """Measure one point; *quiet*: nothing else runs on this machine."""
    server, place = server_of(broker, servers), place_of(broker, servers, visibility=600)
    holding.declare(place)
    empty = _bytes(server, place.setup.broker)
    fleet = Fleet(place, workers, leases, seconds)
    fleet.measure_from_here()
    began, used = time.monotonic(), server.computed()
    notes = fleet.notes()
    share = (server.computed() - used) / (time.monotonic() - began)
    size = _bytes(server, place.setup.broker)
    fleet.end()
    if isinstance(server, PostgresServer):  # what it would vacuum later is not the next point's
        server.execute(f"DROP DATABASE {place.setup.broker.rpartition('/')[2]} WITH (FORCE)")
    lags = [lag for each in notes for lag in each.lags]
    return Point(
        broker=broker,
        workers=workers,
        leases=leases,
        calls=sum(each.calls for each in notes) / seconds,
        renewals=sum(each.renewals for each in notes) / seconds,
        failed=sum(each.failed + each.lost for each in notes),
        server_cpu=100 * share,
        keeper_cpu=100 * statistics.fmean(each.cpu for each in notes) / seconds,
        lag=_at(lags, 0.999) if quiet and lags else None,
        bytes_each=None if empty is None or size is None else (size - empty) / (workers * leases),
    )


def _bytes(server: LocalProcess, url: str) -> float | None:
    """Return the memory of a Redis server, or the size of a database."""
    if isinstance(server, RedisServer):
        with server.client() as client:
            return float(client.info("memory")["used_memory"])
    if isinstance(server, PostgresServer):
        return float(server.execute("SELECT pg_database_size(%s)", url.rpartition("/")[2])[0][0])
    return None


def _at(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def costs(points: Sequence[Point]) -> tuple[float, float, float]:
    """Fit server CPU = fixed + a x calls + b x renewals; return %, and a and b in microseconds.

    By least squares on the relative error, so that small points count as much as large ones. A
    part that comes out below nothing is left out.
    """
    parts = [0, 1, 2]
    while True:
        found = _fitted(points, parts)
        if min(found) >= 0:
            fixed, a, b = (found[parts.index(i)] if i in parts else 0.0 for i in range(3))
            return fixed, a * 1e4, b * 1e4
        parts.pop(found.index(min(found)))


def _fitted(points: Sequence[Point], parts: Sequence[int]) -> list[float]:
    rows = [[(1.0, p.calls, p.renewals)[i] for i in parts] for p in points]
    weights = [1 / max(p.server_cpu, 0.1) ** 2 for p in points]
    wanted = [p.server_cpu for p in points]
    size = range(len(parts))
    normal = [
        [sum(w * r[i] * r[j] for w, r in zip(weights, rows, strict=True)) for j in size]
        for i in size
    ]
    right = [sum(w * r[i] * y for w, r, y in zip(weights, rows, wanted, strict=True)) for i in size]
    return _solve(normal, right)


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
