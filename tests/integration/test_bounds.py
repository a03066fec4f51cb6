"""More of everything than anybody should have: nothing is lost, nothing runs without a lease.

The longest that a lease may be held is in ``test_relay.py``.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from celery_lease.brokers.redis.driver import PIECE
from celery_lease.core.delivery import Answer
from harness.app_bounds import ROOM
from harness.lease_desk import Bench
from harness.ledger import now
from harness.relay_stage import RelayStage
from harness.waiting import eventually
from harness.workers import QUIET_PEERS, WorkerOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from harness.brokers import RedisServer

pytestmark = pytest.mark.timeout(180)

#: More than one script extends; ``BOUNDS_MESSAGES=10000`` takes minutes.
MANY = int(os.environ.get("BOUNDS_MESSAGES", "2500"))

TEN_MEGABYTES = 10 * 1024 * 1024
#: What a step may cost beside the message, statistics included that are asked for in between.
SMALL = 30_000


@pytest.fixture
def stage(valkey: RedisServer, tmp_path: Path) -> Iterator[RelayStage]:
    """A database and nobody on it yet; leases last 6 s."""
    stage = RelayStage(valkey, tmp_path, lease_extension=6)
    yield stage
    stage.close()


def test_a_worker_without_room_for_another_task_takes_no_more(stage: RelayStage) -> None:
    """Ten threads, room for three: each task runs once, under a lease, three of them at a time.

    Removed: the board in ``LeaseRegistry.backlogged``; failed with: 1,309 messages without room.
    """
    options = WorkerOptions(
        module="harness.app_bounds", pool="threads", concurrency=10, extra=QUIET_PEERS
    )
    worker = stage.fleet.start(stage.setup, options)
    due_later = [stage.send("short", countdown=6) for _ in range(4)]
    eventually(lambda: stage.held() == 4)
    tasks = due_later + stage.send_many(12, "beats", 1.5)
    for task_id in tasks:
        stage.wait("end", task_id, within=60)
    stage.wait_settled()
    assert [events(stage, each) for each in tasks] == [["start", "end"]] * len(tasks)
    assert most_at_once(stage) == ROOM
    assert 0 < worker.log.count("no room for task") < 20


def test_thousands_of_waiting_messages_keep_their_leases(stage: RelayStage) -> None:
    """Due in an hour, leased for 6 s: extended in batches, while others run, then handed back."""
    crowd(stage, MANY)
    worker = stage.start()
    eventually(lambda: stage.held() == MANY, 120, what="all received")
    _, latest = expiries(stage)
    calls, began = scripts_of(stage.broker), now()
    eventually(lambda: expiries(stage)[0] > latest + 6, 40, what="all extended")
    due = [stage.send("short", countdown=1) for _ in range(3)]
    sent_at = now()
    for task_id in due:
        stage.wait("end", task_id)
    assert now() - sent_at < 6.0  # the main loop turns
    calls, took = scripts_of(stage.broker) - calls, now() - began
    # One call each would be some 2,000 a second, and as many more as there are more messages.
    assert calls < max(20, 2 * MANY / PIECE) * took
    # A task has ended a moment before its message is acknowledged.
    records = eventually(lambda: len(found := stage.claims()) == MANY and found).values()
    assert {(each["deliveries"], each["losses"]) for each in records} == {(1, 0)}
    assert [events(stage, each) for each in due] == [["start", "end"]] * 3
    assert "lost (" not in worker.log
    worker.term()
    eventually(lambda: stage.waiting() == MANY, 5, what=f"{stage.waiting()} handed back")
    assert worker.wait(40) == 0
    assert stage.held() == 0


def test_ten_megabytes_are_sent_to_be_kept_and_never_fetched_to_be_moved(
    valkey: RedisServer,
) -> None:
    """Each step is one round trip of a few hundred bytes; only a delivery carries the message."""
    bench = Bench(valkey.fresh_url())
    bench.publish("x" * TEN_MEGABYTES)
    holder, reaper = bench.desk(prefetch=1), bench.desk("elsewhere")
    server = valkey.client()
    costs = {}

    def step(name: str, call: Callable[[], Any]) -> Any:
        before = server.info("stats"), scripts_of(server)
        result = call()
        after = server.info("stats"), scripts_of(server)
        sent, got = (
            after[0][each] - before[0][each]
            for each in ("total_net_input_bytes", "total_net_output_bytes")
        )
        costs[name] = (sent, got, after[1] - before[1])
        return result

    (message,) = step("claim", holder.receive)
    holder.stop()
    holder.extend(message)  # the server is sent both scripts
    holder.driver.requeue(["nobody's"])
    assert step("extend", lambda: holder.extend(message)) is Answer.HELD
    assert step("hand back", lambda: holder.driver.requeue([message.claim.tag])) == [Answer.HELD]
    loser = bench.desk(seconds=0.3, prefetch=1)
    (message,) = loser.receive()
    loser.stop()
    reaped = step("reap", lambda: eventually(lambda: reaper.driver.reap(limit=50)))
    assert [each.tag for each in reaped] == [message.claim.tag]
    assert loser.driver.complete([message.claim.tag]) == [Answer.LOST]
    bench.close()
    assert min(costs["claim"][:2]) > TEN_MEGABYTES
    for name in ("extend", "hand back"):
        sent, got, scripts = costs[name]
        assert max(sent, got) < SMALL
        assert scripts == 1
    assert max(costs["reap"][:2]) < SMALL
    assert bench.waiting() == 1


def scripts_of(server: Any) -> int:
    """Return how many scripts a server has run so far."""
    return int(server.info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"])


def crowd(stage: RelayStage, count: int) -> None:
    """Send so many tasks that are due in an hour, quicker than an app can."""
    stage.send("short", countdown=3600)
    text = json.loads(stage.broker.lpop("celery"))  # type: ignore[arg-type]
    for start in range(0, count, 500):
        stage.broker.lpush("celery", *(copy_of(text, start + each) for each in range(500)))


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
