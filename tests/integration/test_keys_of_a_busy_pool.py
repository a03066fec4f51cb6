"""Exclusive keys in a pool that never rests: each is taken in the call that ends another task."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
from celery import states

from harness.app_keys import EXTENSION
from harness.setup import Setup
from harness.waiting import eventually
from harness.workers import WorkerOptions

if TYPE_CHECKING:
    from collections.abc import Iterable

    from celery import Celery

    from harness.brokers import RedisServer
    from harness.ledger import Ledger
    from harness.workers import Worker, WorkerFleet

KEYS, TASKS = 4, 60
WORK, AGAIN = "keyed.work", "keyed.again"


class Stream:
    """Many short tasks of few keys, in one worker."""

    def __init__(self, server: RedisServer, fleet: WorkerFleet) -> None:
        url = server.fresh_url()
        self.setup = Setup(url, url, {"lease_reaper_interval": 0.5})
        self.app: Celery = self.setup.app()
        self.client: Any = server.client(self.setup.database)
        self.fleet, self.ledger = fleet, fleet.ledger
        self.keys: dict[str, str] = {}
        self._numbers = count()

    def worker(self, **options: Any) -> Worker:
        keyed = WorkerOptions(module="harness.app_keys", concurrency=2)
        return self.fleet.start(self.setup, replace(keyed, **options))

    def send(self, tasks: int = TASKS, name: str = WORK, **options: Any) -> list[str]:
        ids = []
        for _ in range(tasks):
            n = next(self._numbers)
            key, task_id = f"k{n % KEYS}", f"t{n}"
            self.keys[task_id] = key
            self.app.send_task(name, [key], task_id=task_id, **options)
            ids.append(task_id)
        return ids

    def ended(self, ids: Iterable[str], event: str = "end", within: float = 60.0) -> None:
        wanted = set(ids)
        eventually(
            lambda: wanted <= {each.task_id for each in self.ledger.entries(event)},
            within,
            what=f"all have an {event}",
        )

    def settled(self) -> None:
        left = ("celery", "unacked", "unacked_index", "unacked.claims", "unacked.leases")
        eventually(lambda: not self.client.exists(*left), 30, what="nothing is held")
        assert self.client.keys("unacked.parked*") + self.client.keys("unacked.holders*") == []

    def most_at_once(self) -> int:
        return max(_most_at_once(self.ledger, key, self.keys) for key in set(self.keys.values()))

    def runs(self, ids: Iterable[str]) -> list[int]:
        return [self.ledger.count("start", task_id) for task_id in ids]


def _most_at_once(ledger: Ledger, key: str, keys: dict[str, str]) -> int:
    running, most = 0, 0
    for entry in ledger.entries():
        if keys.get(entry.task_id) == key and entry.event in ("start", "end"):
            running += 1 if entry.event == "start" else -1
            most = max(most, running)
    return most


@pytest.fixture
def stream(valkey: RedisServer, fleet: WorkerFleet) -> Stream:
    return Stream(valkey, fleet)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"extra": ("--max-tasks-per-child", "1")},
        {"concurrency": 1, "extra": ("--autoscale=3,1",)},
        {"pool": "threads"},
        {"pool": "gevent"},
        {"pool": "solo", "concurrency": 1},
    ],
    ids=["prefork", "max_tasks_per_child", "autoscale", "threads", "gevent", "solo"],
)
def test_each_runs_once_and_no_key_is_held_twice(stream: Stream, options: dict[str, Any]) -> None:
    """Also those that come with an ETA, and the retries of others."""
    ids = stream.send()
    later = stream.send(KEYS, countdown=1.0)
    again = stream.send(KEYS, AGAIN)
    stream.worker(**options)
    stream.ended([*ids, *later])
    eventually(lambda: stream.runs(again) == [2] * KEYS, 30, what="retries have run")
    stream.settled()
    assert stream.runs([*ids, *later]) == [1] * (TASKS + KEYS)
    assert {stream.app.AsyncResult(each).state for each in [*ids, *again]} == {states.SUCCESS}
    for each in again:  # these note no end
        del stream.keys[each]
    assert stream.most_at_once() == 1


def test_two_may_hold_a_key_whose_limit_is_two(stream: Stream) -> None:
    ids = stream.send(headers={"lease": {"lease_key_limit": 2}})
    stream.worker(concurrency=4)
    stream.ended(ids)
    stream.settled()
    assert stream.runs(ids) == [1] * TASKS
    assert stream.most_at_once() <= 2


@pytest.mark.parametrize("busy", ["drop", "replace"])
def test_whoever_gives_way_is_revoked_and_nobody_else(stream: Stream, busy: str) -> None:
    ids = stream.send(headers={"lease": {"lease_on_busy": busy}})
    stream.worker()
    stream.settled()
    stream.ended(each for each, run in zip(ids, stream.runs(ids), strict=True) if run)
    ends = {each: stream.app.AsyncResult(each).state for each in ids}
    assert set(ends.values()) <= {states.SUCCESS, states.REVOKED}
    assert [ends[each] == states.SUCCESS for each in ids] == [run == 1 for run in stream.runs(ids)]
    assert stream.most_at_once() == 1


def test_those_that_are_revoked_or_cancelled_meanwhile_are_over(
    stream: Stream, tmp_path: Any
) -> None:
    """One that runs is cancelled, some that wait are revoked, and the others run once."""
    gate = str(tmp_path / "gate")
    stream.app.send_task(WORK, ["own", gate], task_id="gated")
    worker = stream.worker()
    stream.ledger.wait("start", "gated")
    ids = stream.send()
    gone = ids[TASKS // 2 :: 3]
    ask = {"destination": [worker.hostname], "reply": True, "timeout": 10}
    stream.app.control.revoke(gone, **ask)
    stream.app.control.broadcast("lease_cancel", {"task_id": ["gated"]}, **ask)
    stream.ended(each for each in ids if each not in gone)
    stream.settled()
    assert stream.app.AsyncResult("gated").state == states.REVOKED
    runs = dict(zip(ids, stream.runs(ids), strict=True))
    assert {runs[each] for each in ids if each not in gone} == {1}
    assert max(runs[each] for each in gone) <= 1
    assert stream.most_at_once() == 1


def test_processes_that_are_killed_and_a_worker_that_hands_over_lose_nothing(
    stream: Stream,
) -> None:
    """What has ended is not run again; what had not, is: each ends."""
    ids = stream.send(2 * TASKS)
    worker = stream.worker()
    for n in range(3):
        stream.ended(ids[: 10 * (n + 1)])
        os.kill(worker.children()[0], signal.SIGKILL)
    worker.send(signal.SIGTERM)
    stream.worker()
    stream.ended(ids, within=60 + 3 * EXTENSION)
    stream.settled()
    assert {stream.app.AsyncResult(each).state for each in ids} == {states.SUCCESS}


def test_a_lost_call_or_answer_leaves_neither_a_message_nor_a_key(stream: Stream) -> None:
    """Whether the server has done it or not; what is over is acknowledged again."""
    ids = stream.send()
    worker = stream.worker(module="harness.app_unheard")
    stream.ended(ids)
    stream.settled()
    assert "the call is lost" in worker.log
    assert "the answer is lost" in worker.log
    assert stream.runs(ids) == [1] * TASKS
    assert stream.most_at_once() == 1
