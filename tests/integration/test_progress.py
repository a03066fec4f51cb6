"""``lease_publish_progress``: ``AsyncResult.info`` shows how far a task is, until it is over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from celery import states

from harness.waiting import eventually
from harness.workers import WorkerFleet, WorkerOptions

if TYPE_CHECKING:
    from harness.setup import Setup

pytestmark = pytest.mark.compat


def test_progress_is_seen_by_whoever_waits_and_never_stays(
    setup: Setup, fleet: WorkerFleet
) -> None:
    """A running task's ``info`` moves on; its end is SUCCESS, REVOKED, or FAILURE if its process
    died; and of many that fail at any moment of a publication, each is a FAILURE in the end.
    """
    setup = setup.having(lease_publish_progress=0.1, lease_extension=6)
    app = setup.app()
    worker = fleet.start(setup, WorkerOptions(module="harness.app_views", concurrency=2))

    def send(task: str, *args: Any, **options: Any) -> Any:
        return app.send_task(f"views.{task}", args, **options)

    long = send("work", 2)
    eventually(lambda: long.state == "PROGRESS", 10)
    first = long.info
    assert (first["total"], first["note"], first["deliveries"]) == (2, "working", 1)
    eventually(lambda: long.state == "PROGRESS" and long.info["done"] > first["done"])
    assert long.get(timeout=20) == "done"
    assert (long.state, long.info) == (states.SUCCESS, "done")

    cancelled = send("work", 60)
    eventually(lambda: cancelled.state == "PROGRESS")
    app.control.broadcast("lease_cancel", {"task_id": cancelled.id})
    eventually(lambda: cancelled.state == states.REVOKED)

    limited = send("work", 60, time_limit=1)
    failing = [send("fails", 0.1 + 0.005 * (n % 20)) for n in range(60)]
    for each in (limited, *failing):
        each.get(timeout=60, propagate=False)
    assert {each.state for each in (limited, *failing)} == {states.FAILURE}
    assert cancelled.state == states.REVOKED
    assert "is not published" not in worker.log
    assert "failed, next try" not in worker.log
