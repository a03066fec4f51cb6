"""I2: what comes before and after a task's body may take longer than its lease.

On every pool, hooks of the task's class and receivers of Celery's signals: before the body the
living process keeps the lease, for one extension, and beats do for longer; when the outcome is
stored the message is settled at once, and the hooks that come then run without a lease.
"""

from __future__ import annotations

import json
import os
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from harness.at_once import Stages, at_once
from harness.setup import Setup
from harness.stage import RedisStage
from harness.waiting import eventually
from harness.workers import WorkerFleet

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from harness.brokers import RedisServer

pytestmark = [pytest.mark.compat, pytest.mark.long]

POOLS = ["prefork", "threads", "gevent", "eventlet", "solo"]
EXTENSION = 3.0
#: Seconds that a silent hook takes: before the body, and after it.
BEFORE, AFTER = 1.5 * EXTENSION, 3 * EXTENSION

#: Hooks that come before the body, and those that come after it with the task's end.
FIRST = ["task_prerun", "before_start"]
LAST = [
    ("on_success", "return"),
    ("task_success", "return"),
    ("after_return", "return"),
    ("task_postrun", "return"),
    ("on_failure", "raise"),
    ("task_failure", "raise"),
    ("on_retry", "retry"),
    ("task_retry", "retry"),
    ("task_postrun", "ignore"),
]


class Spans(RedisStage):
    """The tasks with hooks."""

    program = "spans"
    conf: ClassVar[dict[str, Any]] = {"lease_extension": EXTENSION}

    def hooks(self, task_id: str) -> list[str]:
        """Return what its slow hook wrote."""
        return [e.event for e in self.ledger.entries(task_id=task_id) if e.event != "start"]


@pytest.fixture(scope="module")
def stages(
    valkey: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stages[Spans]]:
    """Empty brokers."""

    @contextmanager
    def make(_: Stages[Spans], directory: Path) -> Iterator[Spans]:
        url, fleet = valkey.fresh_url(), WorkerFleet(directory)
        try:
            yield Spans(Setup(url, backend=url), valkey, fleet)
        finally:
            fleet.close()

    with Stages(tmp_path_factory, make) as stages:
        yield stages


@pytest.mark.parametrize("pool", POOLS)
@at_once
def test_what_comes_before_the_body_may_take_an_extension_longer(stage: Spans, pool: str) -> None:
    """One run, one delivery; and as long as it likes if it beats, by the task's own context."""
    stage.worker(pool, 8)
    silent = [stage.send("work", kwargs={"slow": each, "seconds": BEFORE}) for each in FIRST]
    beats = {"seconds": AFTER, "beats": True}
    beating = [stage.send("work", kwargs={"slow": each, **beats}) for each in FIRST]
    for task_id in silent + beating:
        hook = stage.ledger.wait("hook", task_id, within=60)[0]
        assert hook.facts == {"name": hook.facts["name"], "id": task_id, "leased": True}
        stage.ledger.wait("start", task_id, within=60)
    eventually(stage.is_clean, what="all are acknowledged")
    for task_id in silent + beating:
        assert stage.hooks(task_id) == ["hook", "hook end"]
        assert [each.facts for each in stage.ledger.entries("start", task_id)] == [
            {"deliveries": 1}
        ]


@at_once
def test_what_comes_before_the_body_has_an_end(stage: Spans) -> None:
    """I2: for one extension its process is proof; a hook that never ends is no progress."""
    stage.having(lease_max_deliveries=1).worker()
    task_id = stage.send("work", kwargs={"slow": "before_start", "seconds": 600})
    stage.ledger.wait("hook", task_id)
    eventually(lambda: stage.redis.llen("celery.dead") == 1, 40, what="it is a dead letter")
    assert stage.ledger.count("start") == 0
    assert stage.hooks(task_id) == ["hook"]


@pytest.mark.parametrize("pool", POOLS)
@at_once
def test_hooks_after_a_stored_outcome_keep_no_message(stage: Spans, pool: str) -> None:
    """While they run the message is settled; they run to their end, and the task runs once."""
    alone = pool == "solo"  # one after the other
    stage.worker(pool, len(LAST) + 2)
    sent = [
        (hook, how, stage.send("work", how, kwargs={"slow": hook, "seconds": AFTER}))
        for hook, how in (LAST[::3] if alone else LAST)
    ]
    for hook, _, task_id in sent:
        (entry,) = stage.ledger.wait("hook", task_id, within=90)
        assert entry.facts["name"] == hook
        if alone:
            eventually(lambda: not ran(stage) & claimed(stage), AFTER / 2, what="it is settled")
            assert not stage.ledger.count("hook end", task_id)
    if not alone:
        eventually(stage.is_clean, AFTER / 2, what="all are settled")
        assert stage.ledger.count("hook end") == 0
    for _, how, task_id in sent:
        runs = 2 if how == "retry" else 1
        stage.ledger.wait("hook end", task_id, within=90)
        stage.ledger.wait("start", task_id, count=runs)
        assert stage.hooks(task_id) == ["hook", "hook end"]
        assert [e.facts["deliveries"] for e in stage.ledger.entries("start", task_id)] == [1] * runs
    eventually(stage.is_clean, what="all are settled")


def ran(stage: Spans) -> set[str]:
    """Return the ids of the tasks whose body was entered."""
    return {entry.task_id for entry in stage.ledger.entries("start")}


def claimed(stage: Spans) -> set[str]:
    """Return the ids of the tasks whose messages are held."""
    return {json.loads(each)["id"] for each in stage.redis.hvals("unacked.claims")}


@pytest.mark.parametrize("seconds_into", [0.0, 1.0])
@at_once
def test_a_process_that_dies_in_a_hook_has_done_its_work(stage: Spans, seconds_into: float) -> None:
    """Its outcome is stored: it is not run again, and what is stored stays."""
    worker = stage.worker()
    task_id = stage.send("work", kwargs={"slow": "on_success", "seconds": 60})
    (hook,) = stage.ledger.wait("hook", task_id)
    if seconds_into:
        eventually(stage.is_clean, what="it is settled")
    os.kill(hook.pid, signal.SIGKILL)
    worker.wait_log("was over, its hooks were not")
    eventually(stage.is_clean, what="it is settled")
    other = stage.send("work")
    stage.ledger.wait("start", other)
    assert stage.ledger.count("start", task_id) == 1
    assert stage.app.AsyncResult(task_id).state == "SUCCESS"
