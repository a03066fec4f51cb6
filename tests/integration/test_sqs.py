"""Leases on SQS: real workers on moto's server, a process of its own."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("boto3")
pytest.importorskip("moto")

from harness.gate import Gate
from harness.moto_server import REGION, MotoServer
from harness.waiting import always, eventually
from harness.workers import WorkerOptions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.ledger import Ledger
    from harness.workers import WorkerFleet

#: Seconds; longer than this a message of the tests' queues is not hidden by the queue itself.
VISIBILITY = 8


@pytest.fixture(scope="module")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MotoServer]:
    """SQS for all tests of the module; each takes queues of its own."""
    with MotoServer(tmp_path_factory.mktemp("moto")).start() as server:
        yield server


@pytest.fixture
def queue(moto: MotoServer) -> str:
    """A queue of this test."""
    return moto.fresh_queue(VisibilityTimeout=str(VISIBILITY))


def options(queue: str, **more: Any) -> WorkerOptions:
    """Return the command line of a worker with leased tasks."""
    return WorkerOptions(module="harness.app_sqs", queues=queue, **more)


def test_long_waiting_and_scheduled_tasks_run_once(
    moto: MotoServer, queue: str, fleet: WorkerFleet, ledger: Ledger
) -> None:
    """Whatever a worker holds longer than the queue would, no other worker gets to see."""
    setup = moto.setup(queue)
    fleet.start(setup, options(queue))
    send = setup.app().send_task
    running = send("sqs.work", (VISIBILITY + 3,))
    ledger.wait("start", running.id)
    prefetched = send("sqs.work", (0.1,))
    scheduled = send("sqs.work", (0.1,), countdown=VISIBILITY + 4)
    eventually(lambda: moto.counts(queue) == (0, 3), what="all are received")
    fleet.start(setup, options(queue))
    ledger.wait("end", count=3, within=60)
    eventually(lambda: moto.counts(queue) == (0, 0), what="all are deleted")
    for task in (running, prefetched, scheduled):
        (start,) = ledger.entries("start", task.id)
        assert (start.worker, start.facts["deliveries"]) == ("w1@harness", 1)


def test_a_killed_workers_task_is_taken_over(
    moto: MotoServer, queue: str, fleet: WorkerFleet, ledger: Ledger
) -> None:
    """SQS returns the message by itself when the lease expires, with a greater token."""
    setup = moto.setup(queue)
    first = fleet.start(setup, options(queue))
    task = setup.app().send_task("sqs.work", (6.0,))
    ledger.wait("start", task.id)
    first.kill_group()
    fleet.start(setup, options(queue))
    ledger.wait("end", task.id, within=60)
    before, after = ledger.entries("start", task.id)
    assert after.facts["deliveries"] == 2
    assert after.facts["token"] > before.facts["token"]
    eventually(lambda: moto.counts(queue) == (0, 0), what="it is deleted")


def test_a_stopping_worker_hands_back_and_takes_nothing_with_it(
    moto: MotoServer, fleet: WorkerFleet, ledger: Ledger
) -> None:
    """What waits is visible at once, and no poll is left behind to take what comes later.

    The queue would hide both for minutes.
    """
    queue = moto.fresh_queue(VisibilityTimeout="600")
    setup = moto.setup(queue, wait_time_seconds=3)
    worker = fleet.start(setup, options(queue, concurrency=2))
    send = setup.app().send_task
    for _ in range(2):
        send("sqs.work", (7.0,))
    ledger.wait("start", count=2)
    send("sqs.work", (0.1,))
    eventually(lambda: moto.counts(queue) == (0, 3), what="it is received")
    worker.term()
    eventually(lambda: moto.counts(queue) == (1, 2), 6, what="it is visible again")
    assert ledger.count("end") == 0, "that was before the running tasks ended"
    worker.wait(40)
    idle = fleet.start(setup, options(queue, pool="solo"))  # the quickest to shut down
    ledger.wait("end", count=3, within=60)
    eventually(lambda: moto.counts(queue) == (0, 0), what="all are deleted")
    assert always(lambda: idle.returncode is None, 1.0), "it polls"
    idle.term()
    assert idle.wait(40) == 0
    send("sqs.work", (0.1,))
    assert always(lambda: moto.counts(queue) == (1, 0), 1.0), "it left a poll behind that took it"


def test_a_worker_outlives_an_outage(
    moto: MotoServer, queue: str, fleet: WorkerFleet, ledger: Ledger
) -> None:
    """Polls, extensions and acknowledgements fail, and work goes on when SQS is back.

    Plain kombu 5.7 ends the worker at the first poll that is not answered.
    """
    with Gate(moto.port) as gate:
        worker = fleet.start(moto.setup(queue, port=gate.port), options(queue, concurrency=2))
        send = moto.setup(queue).app().send_task
        lost = send("sqs.work", (9.0,))
        ledger.wait("start", lost.id)
        finished = send("sqs.work", (1.0,))
        ledger.wait("start", finished.id)
        gate.close()
        worker.wait_log("SQS does not serve polls")
        ledger.wait("end", finished.id)
        worker.wait_log(f"task sqs.work[{lost.id}] lost its lease")
        gate.open()
        ledger.wait("end", lost.id, within=40)
        eventually(lambda: moto.counts(queue) == (0, 0), what="all are deleted")
        assert worker.returncode is None
        assert ledger.count("start", lost.id) == 2


@pytest.mark.parametrize("predefined", [False, True])
def test_a_fifo_group_runs_one_by_one(
    moto: MotoServer, fleet: WorkerFleet, ledger: Ledger, predefined: bool
) -> None:
    """A group is blocked while one of its messages is held, also for the worker that holds it."""
    queue = moto.fresh_queue(".fifo", VisibilityTimeout=str(VISIBILITY))
    entry = {
        "url": moto.queue_url(queue),
        "region": REGION,
        "access_key_id": "testing",
        "secret_access_key": "testing",
    }
    setup = moto.setup(queue, **({"predefined_queues": {queue: entry}} if predefined else {}))
    send = setup.app().send_task
    tasks = [send("sqs.work", (0.7,)) for _ in range(3)]
    fleet.start(setup, options(queue, concurrency=3))
    ledger.wait("end", count=3)
    assert [entry.task_id for entry in ledger.entries("start")] == [task.id for task in tasks]
    assert ledger.most_at_once() == 1


def test_a_queues_own_dead_letter_queue_wins(
    moto: MotoServer, fleet: WorkerFleet, ledger: Ledger
) -> None:
    """A message rejected for good is left to the redrive policy, however often that allows it."""
    dead = moto.fresh_queue()
    policy = {
        "deadLetterTargetArn": f"arn:aws:sqs:{REGION}:123456789012:{dead}",
        "maxReceiveCount": 2,
    }
    queue = moto.fresh_queue(RedrivePolicy=json.dumps(policy))
    setup = moto.setup(queue)
    fleet.start(setup, options(queue)).wait_log("has a dead-letter queue at SQS")
    setup.app().send_task("sqs.refuse")
    eventually(lambda: moto.counts(dead)[0] == 1, 30, what="it is in the dead-letter queue")
    assert ledger.count("refuse") == 2
    assert always(lambda: moto.counts(queue) == (0, 0), 0.5)


def test_a_task_that_beats_too_seldom_runs_elsewhere(
    moto: MotoServer, queue: str, fleet: WorkerFleet, ledger: Ledger
) -> None:
    """A run that ends after its deadline counts for nothing: SQS cannot confirm its lease."""
    setup = moto.setup(queue).having(lease_watchdog_threshold=300)  # let it run to its end
    workers = fleet.start_many(2, setup, options(queue))
    task = setup.app().send_task("sqs.late", (6.0,))
    first, second = ledger.wait("start", task.id, count=2, within=40)
    assert first.at + 3 < second.at
    eventually(
        lambda: any("its result is discarded" in worker.log for worker in workers),
        what="the first run's result is thrown away",
    )
