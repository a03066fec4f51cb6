"""``python -m tests.growth [PART ...] [--out docs]``: the tables of the page about capacity.

The parts are ``leases``, ``messages`` and ``idle``; those that are not named are kept as they were
measured before. The server's processor time changes little if the machine does other things, too;
``--quiet`` says that it does not, and adds rates and lags.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # `growth` and `harness`

from benchmarks.brokers import Servers, _found
from growth import chart, page
from growth.measure import Point, measure
from growth.traffic import Idle, Messages, idle, messages
from harness.postgres import PostgresServer, postgres_programs

if TYPE_CHECKING:
    from collections.abc import Callable

#: Workers, and leases of each: of one worker and up to 64, and up to 100,000 in all.
MANY = (
    *((1, leases) for leases in (1, 100, 1_000, 10_000)),
    *((4, leases) for leases in (1, 250, 2_500)),
    *((16, leases) for leases in (1, 625, 6_250)),
    *((64, leases) for leases in (1, 16, 160, 1_563)),
)
#: At RabbitMQ the number of leases changes nothing.
FEW = ((1, 10), (1, 100), (4, 100), (16, 10), (16, 100), (64, 10))
SIZES = {"valkey": MANY, "pgmq": MANY, "rabbitmq classic": FEW}
#: No-op tasks of one drain.
DRAINED = {"valkey": 2000, "pgmq": 1000, "rabbitmq classic": 2000, "rabbitmq quorum": 2000}
PARTS: dict[str, Callable[..., Any]] = {"leases": Point, "messages": Messages, "idle": Idle}
DATA = "capacity.json"


class GrowingServers(Servers):
    """A PostgreSQL with connections enough, which does not put off what its changes cost it."""

    def _postgres(self, _: Path) -> Any:
        options = ("--max_connections=300", "--autovacuum_naptime=5")
        return PostgresServer(_found(postgres_programs()), options).create()


def main() -> int:
    """Measure; exit code 1 if an extension failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.growth")
    parser.add_argument("parts", nargs="*", metavar="PART", help="of: leases messages idle")
    parser.add_argument("--seconds", type=float, default=6.0, help="a point; %(default)s")
    parser.add_argument("--most", type=int, default=200_000, help="leases in all; %(default)s")
    parser.add_argument("--rounds", type=int, default=1, help="of each drain; %(default)s")
    parser.add_argument("--quiet", action="store_true", help="nothing else runs on this machine")
    parser.add_argument("--out", type=Path, help="write data, picture and tables here")
    options = parser.parse_args()
    parts = options.parts or [*PARTS]
    if unknown := set(parts) - set(PARTS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    found: dict[str, list[Any]] = {}
    if options.out and (options.out / DATA).exists():
        found = load((options.out / DATA).read_text())
    with tempfile.TemporaryDirectory(prefix="celery-lease-growth-") as name, ExitStack() as stack:
        directory = Path(name)
        servers = GrowingServers(directory, stack)
        for part in parts:
            found[part] = []
            for each in _measured(part, servers, directory, options):
                print(each, flush=True)  # noqa: T201
                found[part].append(each)
            if options.out:
                write(found, options.out)
    return 1 if sum(point.failed for point in found.get("leases", [])) else 0


def _measured(part: str, servers: Any, directory: Path, options: argparse.Namespace) -> Any:
    seconds, quiet = options.seconds, options.quiet
    if part == "leases":
        for broker, sizes in SIZES.items():
            for workers, leases in (each for each in sizes if math.prod(each) <= options.most):
                yield measure(servers, broker, workers, leases, seconds, quiet=quiet)
    elif part == "messages":
        for broker, count in DRAINED.items():
            for kind in ("plain", "leased"):
                known = {"rounds": options.rounds, "quiet": quiet}
                yield messages(servers, broker, kind, directory, count, **known)
    else:
        for broker in SIZES:
            for kind in ("plain", "leased"):
                yield idle(servers, broker, kind, directory, seconds=2 * seconds)


def load(text: str) -> dict[str, list[Any]]:
    """Read what :func:`write` wrote."""
    return {part: [PARTS[part](**each) for each in rows] for part, rows in json.loads(text).items()}


def write(found: dict[str, list[Any]], directory: Path) -> None:
    """Write the data, and of all parts the picture and the page's tables."""
    kept = {part: [asdict(each) for each in rows] for part, rows in found.items()}
    (directory / DATA).write_text(json.dumps(kept, indent=1) + "\n")
    if len(kept) < len(PARTS):
        return
    (directory / "capacity.svg").write_text(chart.svg(found["leases"]))
    path = directory / page.PAGE
    tables = page.tables(found["leases"], found["messages"], found["idle"])
    path.write_text(page.put(path.read_text(), tables))


if __name__ == "__main__":
    sys.exit(main())
