"""More of everything than anybody should have: nothing is lost, nothing runs without a lease.

The longest that a lease may be held is in ``test_relay.py``.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from harness.app_bounds import ROOM
from harness.ledger import now
from harness.relay_stage import RelayStage
from harness.waiting import eventually
from harness.workers import QUIET_PEERS, WorkerOptions

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from harness.brokers import RedisServer

pytestmark = pytest.mark.timeout(180)

MANY = 10_000


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


def test_ten_thousand_waiting_messages_keep_their_leases(stage: RelayStage) -> None:
    """Due in an hour, leased for 6 s: extended in batches, while others run, then handed back."""
    crowd(stage, MANY)
    worker = stage.start()
    eventually(lambda: stage.held() == MANY, 90, what="all received")
    _, latest = expiries(stage)
    calls, began = scripts_run(stage), now()
    eventually(lambda: expiries(stage)[0] > latest + 6, 40, what="all extended")
    due = [stage.send("short", countdown=1) for _ in range(3)]
    sent_at = now()
    for task_id in due:
        stage.wait("end", task_id)
    assert now() - sent_at < 6.0  # the main loop turns
    calls, took = scripts_run(stage) - calls, now() - began
    assert calls < 20 * took  # where one call each would be some 8,000 a second
    records = stage.claims().values()
    assert len(records) == MANY
    assert {(each["deliveries"], each["losses"]) for each in records} == {(1, 0)}
    assert [events(stage, each) for each in due] == [["start", "end"]] * 3
    assert "lost (" not in worker.log
    worker.term()
    eventually(lambda: stage.waiting() == MANY, 5, what=f"{stage.waiting()} handed back")
    assert worker.wait(40) == 0
    assert stage.held() == 0


def crowd(stage: RelayStage, count: int) -> None:
    """Send so many tasks that are due in an hour, quicker than an app can."""
    stage.send("short", countdown=3600)
    text = json.loads(stage.broker.lpop("celery"))  # type: ignore[arg-type]
    for start in range(0, count, 1000):
        stage.broker.lpush("celery", *(copy_of(text, start + each) for each in range(1000)))


def copy_of(text: dict[str, Any], number: int) -> str:
    """Return a message like another, for a task of its own."""
    task_id = f"crowd-{number}"
    headers = {**text["headers"], "id": task_id, "root_id": task_id}
    properties = {**text["properties"], "correlation_id": task_id, "delivery_tag": f"tag-{number}"}
    return json.dumps({**text, "headers": headers, "properties": properties})


def expiries(stage: RelayStage) -> tuple[float, float]:
    """Return when the first and the last lease expires, in server time."""
    scores = [score for _, score in stage.broker.zrange("unacked.leases", 0, -1, withscores=True)]
    return min(scores), max(scores)


def scripts_run(stage: RelayStage) -> int:
    """Return how many scripts the server has run so far, for anybody."""
    return int(stage.broker.info("commandstats")["cmdstat_evalsha"]["calls"])


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
