"""The brokers that support leases: a package with one driver each, and their lookup.

They use kombu and one client library, never Celery and never each other. A driver is found by the
entry-point group :data:`GROUP`, under kombu's ``Transport.driver_type``; ours are registered there
like any other, and all other code asks the driver for the properties of its broker.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pkgutil import iter_modules
from typing import Any

from celery_lease.core.driver import Driver
from celery_lease.core.errors import UnsupportedBroker

GROUP = "celery_lease.brokers"
#: Why a transport has no driver, although its broker seems to extend messages by itself.
REASONS = {
    "gcpubsub": "kombu extends whatever it has received, for as long as the process lives, so a "
    "task that hangs would keep its message for ever",
    "azureservicebus": "the client library renews locks with no regard for the task, up to "
    "max_lock_renewal_duration, or not at all",
}


@cache
def drivers() -> dict[str, EntryPoint]:
    """Return the entry points of the driver classes, by ``Transport.driver_type``.

    Ours are always included: an installation may lack the entry points, if it is older than its
    source tree, and a frozen application has no metadata.
    """
    found = {
        name: EntryPoint(name, f"{__name__}.{name}.driver:{name.capitalize()}Driver", GROUP)
        for _, name, is_package in iter_modules(__path__)
        if is_package
    }
    return found | {each.name: each for each in entry_points(group=GROUP)}


def driver_class(transport: str) -> type[Driver]:
    """Return the driver for a ``Transport.driver_type``; the base class if there is none.

    Raises:
        UnsupportedBroker: There is one, but it cannot be imported, or is no driver.
    """
    point = drivers().get(transport)
    if point is None:
        return Driver
    try:
        found = point.load()
    except Exception as exc:
        raise _unsupported(transport, f"its driver {point.value} does not load: {exc}") from exc
    if isinstance(found, type) and issubclass(found, Driver):
        return found
    raise _unsupported(transport, f"its driver {point.value} is no subclass of {GROUP}.Driver")


def kind_of(connection: Any) -> type[Driver]:
    """Return the driver class for a kombu *connection*, which is not opened.

    Raises:
        UnsupportedBroker: The transport has no driver.
    """
    transport = connection.transport.driver_type
    if transport not in drivers():
        name = connection.transport_cls or transport
        raise _unsupported(name, REASONS.get(name, ""))
    return driver_class(transport)


def driver(channel: Any) -> Driver:
    """Return a new driver for the broker of a live kombu *channel*.

    Raises:
        UnsupportedBroker: The transport has no driver.
    """
    return kind_of(channel.connection.client).connect(channel)


def _unsupported(transport: str, reason: str) -> UnsupportedBroker:
    others = tuple(name for name in drivers() if name != transport)
    return UnsupportedBroker(transport, others, reason)
