"""More of everything than anybody should have: nothing is lost, nothing runs without a lease.

The longest that a lease may be held is in ``test_relay.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.app_bounds import ROOM
from harness.relay_stage import RelayStage
from harness.waiting import eventually
from harness.workers import QUIET_PEERS, WorkerOptions

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from harness.brokers import RedisServer

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def stage(valkey: RedisServer, tmp_path: Path) -> Iterator[RelayStage]:
    """A database and nobody on it yet; leases last 6 s."""
    stage = RelayStage(valkey, tmp_path, lease_extension=6)
    yield stage
    stage.close()


def test_a_worker_without_room_for_another_task_takes_no_more(stage: RelayStage) -> None:
    """Ten threads, room for three: each task runs once, under a lease, three of them at a time.

    Removed: the board in ``Leases.backlogged``; failed with: 1,309 messages without room.
    """
    options = WorkerOptions(
        module="harness.app_bounds", pool="threads", concurrency=10, extra=QUIET_PEERS
    )
    worker = stage.fleet.start(stage.setup, options)
    due_later = [stage.send("short", countdown=3) for _ in range(4)]
    eventually(lambda: stage.held() == 4)
    tasks = due_later + stage.send_many(12, "beats", 1.5)
    for task_id in tasks:
        stage.wait("end", task_id, within=60)
    stage.wait_settled()
    assert [events(stage, each) for each in tasks] == [["start", "end"]] * len(tasks)
    assert most_at_once(stage) == ROOM
    assert 0 < worker.log.count("no room for task") < 20


def events(stage: RelayStage, task_id: str) -> list[str]:
    """Return what happened to a task, whichever delivery it was."""
    return [event for event, _ in stage.runs(task_id)]


def most_at_once(stage: RelayStage) -> int:
    """Return how many tasks ran at the same time."""
    steps = {"start": 1, "end": -1}
    running = most = 0
    for entry in sorted(stage.ledger.entries(), key=lambda each: each.at):
        running += steps[entry.event]
        most = max(most, running)
    return most
