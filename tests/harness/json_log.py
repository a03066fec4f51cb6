"""Writes a worker's log as JSON lines too, with all fields: ``celery worker -I harness.json_log``.

The file is named by the environment; its handler has the filter that users put on theirs.
"""

from __future__ import annotations

import json
import logging
import os
from typing import Any

from celery.signals import after_setup_logger, after_setup_task_logger

from celery_lease.core.fields import NAMES
from celery_lease.observability import LeaseLogFilter

ENV = "HARNESS_JSON_LOG"


class JsonLines(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        line = {"name": record.name, "text": record.getMessage(), "process": record.process}
        return json.dumps(line | {name: getattr(record, name) for name in NAMES}, default=str)


@after_setup_logger.connect
@after_setup_task_logger.connect
def add_handler(logger: logging.Logger, **_: Any) -> None:
    """Add a handler to a logger that Celery has set up; forks append to its file too.

    A test that imports this module for its names has no such file.
    """
    if ENV not in os.environ:
        return
    handler = logging.FileHandler(os.environ[ENV])
    handler.setFormatter(JsonLines())
    handler.addFilter(LeaseLogFilter())
    logger.addHandler(handler)
