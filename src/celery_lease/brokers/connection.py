"""Connection classes whose channels can lease, for a whole app.

Kombu takes a transport from its connection, and a channel class from its transport. Only the
connection's class survives everything that happens to a connection: it is cloned, it switches to
another URL, perhaps of another broker, and connects again.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from kombu import Connection

from celery_lease.brokers import driver_class


class LeasingConnection(Connection):
    """A kombu connection; a driver can make its channels lease."""

    def get_transport_cls(self) -> Any:
        kombus = super().get_transport_cls()
        return driver_class(kombus.driver_type).transport_class(kombus)


@cache
def leasing(connection_class: type[Any]) -> type[Any]:
    """Return a leasing subclass of a connection class; the class itself if it is one."""
    if issubclass(connection_class, LeasingConnection):
        return connection_class
    if connection_class is Connection:
        return LeasingConnection
    return type("LeasingConnection", (LeasingConnection, connection_class), {})
