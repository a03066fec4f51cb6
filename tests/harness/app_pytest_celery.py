"""An app as a user's is: ``celery -A harness.app_pytest_celery worker``."""

from __future__ import annotations

import time
from pathlib import Path

from celery import Celery

from celery_lease import LeasedTask, current_context

app = Celery("harness.app_pytest_celery", set_as_current=False)


@app.task(name="job", base=LeasedTask, lease_extension=3)
def job(seconds: float, mark: str | None = None) -> int:
    """Beat for some seconds, in later deliveries not at all; return how many there were.

    The first delivery makes a file to say that it has begun.
    """
    context = current_context()
    if mark is not None:
        Path(mark).touch()
    end = time.monotonic() + (seconds if context.deliveries == 1 else 0.0)
    while time.monotonic() < end:
        context.beat()
        time.sleep(0.05)
    return context.deliveries
