"""Adds the fields of its lease to every log line of a leased task."""

from __future__ import annotations

import logging

from celery_lease.core import fields
from celery_lease.task.current import log_fields

#: The value in a format such as ``%(lease)s`` outside of leased tasks.
NONE = "-"


class LeaseLogFilter(logging.Filter):
    """Adds ``task_id``, ``task_name``, ``lease``, ``token`` and ``worker`` to each record.

    Use it on a handler, so that it sees the records of all loggers. Existing fields are kept.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the fields to a record, and let it pass."""
        here = log_fields()
        for name in fields.NAMES:
            if not hasattr(record, name):
                setattr(record, name, here.get(name, NONE))
        return True
