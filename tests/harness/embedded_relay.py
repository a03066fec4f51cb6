"""A program that runs workers in its own process, one by one: ``-m harness.embedded_relay``.

Prints a line of JSON for each time: the threads and the locks around forks that are left,
and how many descriptors are open.
"""

from __future__ import annotations

import gc
import json
import sys
import tempfile
import threading

import psutil
from celery.contrib.testing.worker import start_worker

from celery_lease.worker import fork_safety
from harness.app_relay import app, beats


def descriptors() -> int:
    """Return how many are open, but for files of the system's: libuuid keeps one a thread."""
    process, temporary = psutil.Process(), tempfile.gettempdir()
    others = [each for each in process.open_files() if not each.path.startswith(temporary)]
    return process.num_fds() - len(others)


def main(pool: str, seconds: float, times: int) -> None:
    """Run a task of some seconds in an embedded worker, and end the worker; some times."""
    for _ in range(times):
        with start_worker(app, pool=pool, perform_ping_check=False, loglevel="INFO"):
            beats.delay(seconds).get(timeout=60)
        left = [each.name for each in threading.enumerate() if "celery-lease" in each.name]
        gc.collect()  # a worker is a knot of references, Celery's own polling files included
        files = descriptors()
        found = {"threads": left, "locks": fork_safety.guarded(), "files": files}
        print(json.dumps(found), flush=True)  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]))
