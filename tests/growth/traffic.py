"""What messages and idle workers cost the server of a broker, leased and plain."""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import count as numbers
from typing import TYPE_CHECKING, Any

import psutil

from benchmarks import rates
from benchmarks.brokers import LEASED, STOCK, server_of, staged
from growth import holding

if TYPE_CHECKING:
    from pathlib import Path

    from harness.places import Place
    from harness.processes import LocalProcess

IDLE = {"leased": LEASED, "plain": STOCK}
#: Seconds after which workers do no more of what follows their start.
SETTLES = 3.0
#: Leases of others: a sweep looks at up to 500.
HELD = 1000
_numbers = numbers(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Messages:
    """What a message costs the server, of a task that does nothing."""

    broker: str
    kind: str  #: leased or plain
    rate: float | None  #: tasks that one worker starts in a second
    sent: float  #: microseconds of processors for sending a message
    served: float  #: the same for its delivery and its end


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """What a worker that does nothing costs the server."""

    broker: str
    kind: str
    cpu: float  #: share of one processor, in percent
    connections: float
    memory: float  #: kilobytes of the server's processes that they share with none


def messages(
    servers: Any, broker: str, kind: str, directory: Path, count: int, *, rounds: int, quiet: bool
) -> Messages:
    """Drain a queue some times; what else the machine does only adds to the shortest time.

    *quiet*: nothing else runs on it.
    """
    tasks = rates.KINDS[kind]
    drains = [rates.drained(servers, broker, tasks, directory, count) for _ in range(rounds)]
    return Messages(
        broker=broker,
        kind=kind,
        rate=max(drain.rate for drain in drains) if quiet else None,
        sent=min(drain.sent for drain in drains) * 1e6,
        served=min(drain.served for drain in drains if drain.served is not None) * 1e6,
    )


def idle(
    servers: Any, broker: str, kind: str, directory: Path, *, seconds: float, workers: int = 4
) -> Idle:
    """Let some workers do nothing, beside the server without them."""
    server = server_of(broker, servers)
    with staged(servers, broker, IDLE[kind], directory / f"idle-{next(_numbers)}") as stage:
        _hold(stage.place)
        stage.send(1, 0.1)
        cpu, connections, memory = _seen(server, seconds)
        stage.workers(workers)
        stage.fleet.ledger.wait("start")
        time.sleep(SETTLES)
        with_cpu, with_connections, with_memory = _seen(server, seconds)
    return Idle(
        broker=broker,
        kind=kind,
        cpu=max(with_cpu - cpu, 0.0) / workers,
        connections=(with_connections - connections) / workers,
        memory=max(with_memory - memory, 0.0) / workers,
    )


def _hold(place: Place) -> None:
    """Have leases for the sweeps to look at, where a worker sweeps what others hold."""
    holding.declare(place)
    if not place.setup.broker.startswith("amqp"):
        driver, claims = holding.claimed(place, HELD, 3600.0)
        list(claims)
        driver.close()


def _seen(server: LocalProcess, seconds: float) -> tuple[float, int, float]:
    """Return percent of a processor during some seconds, connections, and kilobytes."""
    began, used = time.monotonic(), server.computed()
    time.sleep(seconds)
    share = (server.computed() - used) / (time.monotonic() - began)
    main = psutil.Process(server.pid)
    family = [main, *main.children(recursive=True)]
    port = server.port  # type: ignore[attr-defined]
    connections = [each for process in family for each in process.net_connections("tcp")]
    taken = {each.raddr for each in connections if each.raddr and each.laddr.port == port}
    memory = sum(process.memory_full_info().uss for process in family) / 1024
    return 100 * share, len(taken), memory
