"""Asks the broker, from a task process, whether an expired lease is still the task's own.

This is rare: a run returns after its deadline, or so close to it that its result might be stored
after it. The question is an extension, so that no other worker gets the message meanwhile.
"""

from __future__ import annotations

import logging
import os
import weakref
from typing import TYPE_CHECKING

from celery_lease import brokers
from celery_lease.core.delivery import Answer, Renewal

if TYPE_CHECKING:
    from celery import Celery

    from celery_lease.core.driver import Driver
    from celery_lease.core.ticket import Ticket

logger = logging.getLogger(__name__)

#: Longest wait for the broker's answer, in seconds; no answer counts as a loss.
TIMEOUT = 5.0

# The drivers of this process by app, each with the id of the process that connected it: a forked
# child must not use its parent's sockets. A dict store is atomic; two threads that both connect
# create one driver too many, and both work.
_drivers: weakref.WeakKeyDictionary[Celery, tuple[int, Driver]] = weakref.WeakKeyDictionary()


def confirm(app: Celery, ticket: Ticket) -> bool:
    """Return whether the broker confirms that the lease is still held, and extends it."""
    try:
        driver = _driver(app)
    except Exception:  # an unreachable broker, in as many ways as there are clients
        logger.exception("lease not confirmed: broker not reached", extra=ticket.fields)
        return False
    renewal = Renewal(ticket.tag, ticket.extension, late=True)
    return driver.extend([renewal], timeout=TIMEOUT) == [Answer.HELD]


def _driver(app: Celery) -> Driver:
    pid, driver = _drivers.get(app, (0, None))
    if driver is None or pid != os.getpid():
        # Leases are at the broker that the worker reads from; it may send messages to another.
        with app.connection_for_read() as connection:
            driver = brokers.driver(connection.default_channel)
        _drivers[app] = (os.getpid(), driver)
    return driver
