"""One queue at each of the brokers, looked at in the same way, for what must hold at all of them.

Which broker can do what stands in :data:`ABILITIES`, and nowhere else in the tests.
"""

from __future__ import annotations

import itertools
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol

from amqp.exceptions import NotFound

from harness.rabbitmq import QUORUM, with_queue

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery import Celery

    from harness.setup import Setup

#: Seconds for which a broker hides a message that it knows nothing else of; where it does hide.
VISIBILITY = 6

#: What workers on a broker can do beyond what all can.
#:
#: counts: every delivery is counted, whoever got it. losses: they are known to all workers, and
#: not only to the one that saw them.
ABILITIES = {
    "valkey": {"counts", "losses"},
    "sqs": {"counts"},
    "pgmq": {"counts", "losses"},
    "rabbitmq classic": set[str](),
    "rabbitmq quorum": {"counts"},
}
#: A list of pgmq, for the tests of a kombu that has it: 5.7 and newer.
PGMQ = ["pgmq"] if find_spec("kombu.transport.pgmq") is not None else []
_numbers = itertools.count(1)


class Servers(Protocol):
    """Has a server of each kind, as pytest has by its fixtures' names."""

    def getfixturevalue(self, argname: str) -> Any:
        """Return a running one."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A queue that is one test's own, for its workers and for looking at it."""

    setup: Setup
    waiting: Callable[[], int]  #: messages that nobody holds
    left: Callable[[], int]  #: all messages, held ones too
    dead: Callable[[], int]  #: messages in the dead-letter queue

    @property
    def queue(self) -> str:
        return str(self.setup.conf.get("task_default_queue", "celery"))

    def app(self) -> Celery:
        """Return an app that sends."""
        return with_queue(self.setup.app())


def place_of(name: str, servers: Servers, *, visibility: int = VISIBILITY, **conf: Any) -> Place:
    """Return a place at a broker, with further Celery settings of its workers.

    Args:
        name: One of :data:`ABILITIES`.
        servers: Starts the broker, or has.
        visibility: Seconds for which it hides what was received, where it does.
        conf: Celery settings.
    """
    make = {"valkey": _redis, "sqs": _sqs, "pgmq": _pgmq}.get(name)
    if make is not None:
        return make(servers, visibility, conf)
    return _rabbitmq(servers, conf, QUORUM if name.endswith("quorum") else {})


def _redis(servers: Servers, visibility: int, conf: dict[str, Any]) -> Place:
    from harness.setup import Setup

    server = servers.getfixturevalue("valkey")
    options = {"visibility_timeout": visibility}
    setup = Setup(server.fresh_url(), conf={"broker_transport_options": options, **conf})

    def size(queue: str = "celery") -> int:
        with server.client(setup.database) as client:
            return int(client.llen(queue))

    def held() -> int:
        with server.client(setup.database) as client:
            return int(client.hlen("unacked"))

    return Place(
        setup=setup,
        waiting=size,
        left=lambda: size() + held(),
        dead=lambda: size("celery.dead"),
    )


def _sqs(servers: Servers, visibility: int, conf: dict[str, Any]) -> Place:
    moto = servers.getfixturevalue("moto")
    queue = moto.fresh_queue(VisibilityTimeout=str(visibility))

    def dead() -> int:
        with suppress(moto.client().exceptions.QueueDoesNotExist):
            return int(sum(moto.counts(f"{queue}-dead")))
        return 0

    return Place(
        setup=moto.setup(queue).having(**conf),
        waiting=lambda: int(moto.counts(queue)[0]),
        left=lambda: sum(moto.counts(queue)),
        dead=dead,
    )


def _pgmq(servers: Servers, visibility: int, conf: dict[str, Any]) -> Place:
    database = servers.getfixturevalue("postgres").fresh_database()

    def dead() -> int:
        statement = "SELECT queue_length FROM pgmq.metrics_all() WHERE queue_name = 'celery_dead'"
        return sum(length for (length,) in database.execute(statement))

    return Place(
        setup=database.setup(visibility_timeout=visibility, pool_size=1).having(**conf),
        waiting=lambda: int(database.counts()[0]),
        left=lambda: sum(database.counts()),
        dead=dead,
    )


def _rabbitmq(servers: Servers, conf: dict[str, Any], arguments: dict[str, Any]) -> Place:
    server = servers.getfixturevalue("rabbitmq")
    queue = f"place{next(_numbers)}"
    # A stopped worker keeps its messages until the broker misses its heartbeats.
    setup = server.setup(queue, arguments, broker_heartbeat=4, broker_heartbeat_checkrate=2)

    def dead() -> int:
        with suppress(NotFound):
            return int(server.ready(f"{queue}.dead"))
        return 0

    return Place(
        setup=setup.having(**conf),
        waiting=lambda: int(server.ready(queue)),
        left=lambda: sum(server.counts(queue)),
        dead=dead,
    )
