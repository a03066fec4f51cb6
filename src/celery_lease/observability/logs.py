"""Says in every log line of a leased task which lease it was written under."""

from __future__ import annotations

import logging

from celery_lease.core import fields
from celery_lease.current import log_fields

#: What a format such as ``%(lease)s`` shows outside of leased tasks.
NONE = "-"


class LeaseLogFilter(logging.Filter):
    """Adds ``task_id``, ``task_name``, ``lease``, ``token`` and ``worker`` to each record.

    For a handler, so that it sees the records of all loggers. What a line has already stays.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Complete a record, and let it pass."""
        here = log_fields()
        for name in fields.NAMES:
            if not hasattr(record, name):
                setattr(record, name, here.get(name, NONE))
        return True
