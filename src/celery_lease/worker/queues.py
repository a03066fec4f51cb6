"""Refuses a worker whose dead-letter queues would have names that the broker does not allow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_lease import brokers
from celery_lease.core.faults import Fault
from celery_lease.settings import LeaseConfigError, Settings

if TYPE_CHECKING:
    from celery import Celery


def check_names(app: Celery, loaded: Settings, connection: Any) -> None:
    """Check the name of the dead-letter queue of each consumed queue.

    Raises:
        LeaseConfigError: The broker does not allow a dead-letter queue's name.
    """
    driver, faults = brokers.kind_of(connection), []
    for queue in map(str, app.amqp.queues.consume_from or {}):
        dead = loaded.dead_letter_queue_of(queue)
        if reason := driver.unfit_name(connection, dead):
            rule = f"for queue {queue} that is {dead}, {reason}"
            hint = "give a shorter one, or shorten the queue's own name"
            faults.append(Fault("lease_dead_letter_queue", loaded.dead_letter_queue, rule, hint))
    if faults:
        raise LeaseConfigError(tuple(faults))
