"""The brokers that can lease, each a package of its own with one driver.

They know kombu and one client library, never Celery and never each other.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from celery_lease.core.errors import UnsupportedBroker

if TYPE_CHECKING:
    from celery_lease.core.clock import Clock
    from celery_lease.core.delivery import Driver, Holder

#: Kombu's ``Transport.driver_type`` to the package that leases on it.
DRIVERS = {
    "redis": "celery_lease.brokers.redis",
    "sqs": "celery_lease.brokers.sqs",
    "pgmq": "celery_lease.brokers.pgmq",
    "amqp": "celery_lease.brokers.amqp",
    "memory": "celery_lease.brokers.memory",
}
#: Why there is none for a transport of which one might think that it needs none.
REASONS = {
    "gcpubsub": "kombu extends whatever it has received, for as long as the process lives, so a "
    "task that hangs would keep its message for ever",
    "azureservicebus": "the client library renews locks with no regard for the task, up to "
    "max_lock_renewal_duration, or not at all",
}


def check(connection: Any) -> None:
    """Make sure that there is a driver for a kombu *connection*; it is not opened.

    Raises:
        UnsupportedBroker: There is none.
    """
    driver_type = connection.transport.driver_type
    if driver_type not in DRIVERS:
        name = connection.transport_cls or driver_type
        raise UnsupportedBroker(name, tuple(DRIVERS), REASONS.get(name, ""))


def driver(channel: Any) -> Driver:
    """Return a new driver for the broker of a live kombu *channel*.

    Raises:
        UnsupportedBroker: There is none.
    """
    check(channel.connection.client)
    return _module(channel, "driver").connect(channel)  # type: ignore[no-any-return]


def lease_messages(channel: Any, driver: Driver, holder: Holder, clock: Clock) -> None:
    """Make a live kombu *channel* lease the messages that *holder* has terms for."""
    _module(channel, "channel").lease_messages(channel, driver, holder, clock)


def turn(channel: Any) -> None:
    """Let a *channel* follow what its holder wants; for the consuming thread, about once a second.

    A transport whose broker delivers unasked has a part in this.
    """
    _call(channel, "turn")


def end_receiving(channel: Any) -> None:
    """Take in what the broker may have given out to a *channel* already; for its last moments.

    A transport that asks for messages ahead of time has a part in this. To be called when nothing
    is consumed any more: what still arrives then goes back to its queue.
    """
    _call(channel, "end_receiving")


def will_pass(connection: Any, exc: BaseException) -> bool:
    """Tell whether a broker refuses for now only what failed on a kombu *connection*.

    A transport whose library does not take such an error for a lost connection has a part in this.
    """
    function = getattr(_module_of(connection, "channel"), "will_pass", None)
    return function is not None and function(exc)


def _call(channel: Any, name: str) -> None:
    """Call the function that a driver may have for a channel that is not closed."""
    if getattr(channel.connection, "client", None) is not None:
        function = getattr(_module(channel, "channel"), name, None)
        if function is not None:
            function(channel)


def _module(channel: Any, part: str) -> Any:
    return _module_of(channel.connection.client, part)


def _module_of(connection: Any, part: str) -> Any:
    return import_module(f"{DRIVERS[connection.transport.driver_type]}.{part}")
