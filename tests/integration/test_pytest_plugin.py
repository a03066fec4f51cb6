"""The pytest plugin's real workers, in the suite of a user who has never seen this project's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

PROJECT = """
import time
from pathlib import Path

from celery import Celery
from celery_lease import ToolContext, leased_task

app = Celery("shop.app", broker="redis://127.0.0.1:1/0", backend="redis://127.0.0.1:1/0")
app.conf.update(lease_extension=3, broker_connection_retry_on_startup=True)
app.set_default()

@leased_task
def pack(marks: str, *, context: ToolContext) -> int:
    Path(marks, str(context.deliveries)).touch()
    while context.deliveries == 1:  # until its worker is killed
        context.beat()
        time.sleep(0.1)
    return context.deliveries
"""

TESTS = """
import time
from shop.app import app, pack

def test_a_killed_worker_s_task_is_run_by_the_other_one(lease_worker, tmp_path):
    workers = [lease_worker(app), lease_worker("shop.app", "-P", "threads")]
    result = pack.delay(str(tmp_path))
    until = time.monotonic() + 20
    while not (tmp_path / "1").exists():
        assert time.monotonic() < until
        time.sleep(0.05)
    holder = next(worker for worker in workers if "received" in worker.log)
    holder.kill()
    assert result.get(timeout=20) == 2

def test_each_test_has_a_broker_of_its_own(lease_worker, lease_broker):
    assert app.connection_for_write().port == 1
    worker = lease_worker(app, "-P", "solo")
    assert f":{app.connection_for_write().port}/" in lease_broker
    assert worker.stop() == 0
    assert "ready" in worker.log
"""


def test_a_user_s_suite_runs_real_workers_and_leaves_none(pytester: pytest.Pytester) -> None:
    """Breaks when a worker is not at the test's broker, or outlives its test, or a test warns."""
    package: Path = pytester.mkpydir("shop")
    (package / "app.py").write_text(PROJECT)
    pytester.makepyfile(TESTS)
    pytester.makeini("[pytest]\npythonpath = .\n")
    result = pytester.runpytest_subprocess(
        "-W", "error", "-W", "ignore:unclosed:ResourceWarning", "-p", "no:cacheprovider", "-rP"
    )
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["*ready.", "*Warm shutdown*"])
    assert processes_of(package) == []


def processes_of(package: Path) -> list[int]:
    """Return the ids of living workers of the user's app."""
    found = []
    for process in psutil.process_iter():
        try:
            environment = process.environ()
        except psutil.Error:
            continue
        if str(package.parent) in environment.get("PYTHONPATH", ""):
            found.append(process.pid)
    return found
