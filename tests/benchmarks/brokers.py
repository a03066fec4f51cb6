"""What leases cost and save at each broker, beside stock Celery in the same run.

::

    python -m tests.benchmarks.brokers --runs 3

Three figures each: extending 1,000 leases of one worker; from the kill of a worker to its task's
start in another one; from SIGTERM to the last reserved message back in its queue. Leased and stock
workers take turns.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # `benchmarks` and `harness`

from kombu import Producer, Queue

from benchmarks.app import PLAIN
from benchmarks.bench import moment
from celery_lease.core.delivery import Answer, Renewal
from harness.brokers import RedisServer, valkey_binary
from harness.certificates import make_certificate
from harness.lease_desk import Bench
from harness.ledger import now
from harness.moto_server import MotoServer
from harness.places import ABILITIES, Place, place_of
from harness.postgres import PostgresServer, postgres_programs
from harness.rabbitmq import ARGUMENTS, RabbitServer, rabbitmq_home
from harness.workers import QUIET_PEERS, WorkerFleet, WorkerOptions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.processes import LocalProcess

LEASES = 1000
RESERVED = 10
EXTENSION, REAPER = 3.0, 1.0
#: Seconds of the running task, and for which the broker hides messages in general.
BUSY, VISIBILITY = 5.0, 20
#: Seconds after which a figure is given up.
PATIENCE = 150.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Workers that are compared."""

    task: str  #: runs for some seconds, and records its start
    env: dict[str, str] = field(default_factory=dict)


LEASED = Kind(task="benchmark.work")
STOCK = Kind(task="benchmark.pause", env={PLAIN: "1"})


class Servers:
    """Starts each broker when it is first needed."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self._directory, self._stack = directory, stack
        self._running: dict[str, Any] = {}

    def getfixturevalue(self, argname: str) -> Any:
        if argname not in self._running:
            server = getattr(self, f"_{argname}")(self._directory / argname)
            self._running[argname] = self._stack.enter_context(server)
        return self._running[argname]

    def _valkey(self, directory: Path) -> Any:
        return RedisServer(_found(valkey_binary()), directory).start()

    def _moto(self, directory: Path) -> Any:
        return MotoServer(directory).start()

    def _postgres(self, _: Path) -> Any:
        return PostgresServer(_found(postgres_programs())).create()

    def _rabbitmq(self, directory: Path) -> Any:
        directory.mkdir()
        return RabbitServer(_found(rabbitmq_home()), directory, make_certificate(directory)).start()


@dataclass(frozen=True, slots=True)
class Stage:
    """One place with its workers."""

    place: Place
    fleet: WorkerFleet
    kind: Kind

    def worker(self, prefetch: int = 1, concurrency: int = 1) -> Any:
        (worker,) = self.workers(1, prefetch, concurrency)
        return worker

    def workers(self, count: int, prefetch: int = 1, concurrency: int = 1) -> list[Any]:
        options = WorkerOptions(
            module="benchmarks.app",
            concurrency=concurrency,
            queues=self.place.queue,
            extra=(*QUIET_PEERS, f"--prefetch-multiplier={prefetch}"),
            env=self.kind.env,
        )
        return list(self.fleet.start_many(count, self.place.setup, options))

    def send(self, count: int, *args: Any) -> None:
        app = self.place.app()
        with app.producer_or_acquire() as producer:
            for _ in range(count):
                app.send_task(self.kind.task, args, producer=producer, ignore_result=True)


def main() -> int:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.brokers")
    parser.add_argument("--runs", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--brokers", default=",".join(ABILITIES), help="default: %(default)s")
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="celery-lease-brokers-"))
    _say("| broker | 1,000 leases | killed, leased | stock | SIGTERM, leased | stock |")
    _say("| --- | ---: | ---: | ---: | ---: | ---: |")
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        servers = Servers(directory, stack)
        for name in options.brokers.split(","):
            cells = [f"{extend(servers, name):.1f} ms"]
            for measure in (kill, requeue):
                for kind, runs in ((LEASED, options.runs), (STOCK, 1)):
                    stages = (directory / f"{name}-{len(cells)}-{run}" for run in range(runs))
                    cells.append(_median([measure(servers, name, kind, each) for each in stages]))
            _say(f"| {name} | {' | '.join(cells)} |")
    return 0


def extend(servers: Servers, name: str, rounds: int = 10) -> float:
    """Return the milliseconds that extending many leases of one consumer takes."""
    place = place_of(name, servers, visibility=600)
    conf = place.setup.conf
    queue = Queue(place.queue, queue_arguments=conf.get(ARGUMENTS) or {})
    bench = Bench(place.setup.broker, dict(conf.get("broker_transport_options") or {}))
    with bench.channel() as channel:
        queue(channel).declare()
        for number in range(LEASES):
            Producer(channel).publish(number, routing_key=place.queue)
    with bench.desk(queue, seconds=300.0) as desk:
        messages = desk.receive(LEASES, within=300)
        renewals = [Renewal(message.claim.tag, 300.0) for message in messages]
        took = []
        for _ in range(rounds):
            started = time.perf_counter()
            answers = desk.driver.extend(renewals, timeout=60.0)
            took.append((time.perf_counter() - started) * 1000)
            if answers != [Answer.HELD] * LEASES:
                raise RuntimeError("not all leases were extended")
    return statistics.median(took)


def kill(servers: Servers, name: str, kind: Kind, directory: Path) -> float | None:
    """Return the seconds from the end of a worker to the start of its task in another one."""
    conf = {"lease_extension": EXTENSION, "lease_reaper_interval": REAPER}
    with staged(servers, name, kind, directory, **(conf if kind is LEASED else {})) as stage:
        first = stage.worker()
        stage.send(1, 60.0)
        (start,) = stage.fleet.ledger.wait("start")
        stage.worker()
        moment(lambda: now() - start.at > EXTENSION)
        killed_at = now()
        first.kill_group()
        if _in_time(lambda: stage.fleet.ledger.count("start") == 2):
            return stage.fleet.ledger.entries("start")[1].at - killed_at
        return None


def requeue(servers: Servers, name: str, kind: Kind, directory: Path) -> float | None:
    """Return the seconds from SIGTERM until each reserved message is in its queue, or was begun.

    A stock worker of some brokers still begins what it has given to its pool.
    """
    conf = {"lease_extension": 30.0} if kind is LEASED else {}
    with staged(servers, name, kind, directory, **conf) as stage:
        stage.send(RESERVED + 1, BUSY)
        worker = stage.worker(prefetch=RESERVED + 1)
        stage.fleet.ledger.wait("start")
        moment(lambda: stage.place.waiting() == 0)
        asked = time.perf_counter()
        worker.term()
        begun = stage.fleet.ledger
        if _in_time(lambda: stage.place.waiting() + begun.count("start") > RESERVED, 0.01):
            return time.perf_counter() - asked
        return None


def server_of(name: str, servers: Any) -> LocalProcess:
    """Return the server of one of the places that :func:`place_of` knows."""
    fixture = {"sqs": "moto", "pgmq": "postgres"}.get(name, name.split(maxsplit=1)[0])
    server: LocalProcess = servers.getfixturevalue(fixture)
    return server


@contextmanager
def staged(
    servers: Servers, name: str, kind: Kind, directory: Path, **conf: Any
) -> Iterator[Stage]:
    """Yield a queue of a broker's own, for workers of a kind, which end afterwards."""
    directory.mkdir()
    place = place_of(name, servers, visibility=VISIBILITY, **conf)
    fleet = WorkerFleet(directory, directory.name.replace(" ", "-"))
    try:
        yield Stage(place, fleet, kind)
    finally:
        fleet.close()


def _in_time(condition: Any, every: float = 0.05) -> bool:
    try:
        moment(condition, PATIENCE, every)
    except TimeoutError:
        return False
    return True


def _median(took: list[float | None]) -> str:
    seen = [each for each in took if each is not None]
    return f"{statistics.median(seen):.2f} s" if len(seen) == len(took) else f"> {PATIENCE:g} s"


class NotInstalled(SystemExit):
    """A server is missing."""


def _found(program: Any) -> Any:
    if program is None:
        raise NotInstalled("a server is not installed: see .ci/run")
    return program


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
