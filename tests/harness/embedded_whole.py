"""A program with a worker of its own for an app of plain tasks: ``-m harness.embedded_whole``."""

from __future__ import annotations

import sys

from celery.contrib.testing.worker import start_worker

import celery_lease
from harness.app_whole import app


def main(seconds: float) -> None:
    """Run a task of some seconds in an embedded worker, and end the worker."""
    celery_lease.install(app)
    with start_worker(app, pool="threads", perform_ping_check=False, loglevel="INFO"):
        app.send_task("whole.late", [seconds]).get(timeout=60)


if __name__ == "__main__":
    main(float(sys.argv[1]))
