"""Leases on SQS: real workers on moto's server, a process of its own."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("boto3")
pytest.importorskip("moto")

from harness.draining import Drained, by_signal
from harness.gate import Gate
from harness.moto_server import REGION, MotoServer
from harness.waiting import always, eventually
from harness.workers import WorkerOptions

if TYPE_CHECKING:
    from harness.ledger import Ledger
    from harness.workers import WorkerFleet

#: Seconds; longer than this a message of the tests' queues is not hidden by the queue itself.
VISIBILITY = 8


@pytest.fixture
def queue(moto: MotoServer) -> str:
    """A queue of this test."""
    return moto.fresh_queue(VisibilityTimeout=str(VISIBILITY))


def options(queue: str, **more: Any) -> WorkerOptions:
    """Return the command line of a worker with leased tasks."""
    return WorkerOptions(module="harness.app_leased", queues=queue, **more)


def test_a_stopping_worker_takes_nothing_with_it(
    moto: MotoServer, fleet: WorkerFleet, ledger: Ledger
) -> None:
    """No poll is left behind to take what comes later: the queue would hide it for minutes."""
    queue = moto.fresh_queue(VisibilityTimeout="600")
    setup = moto.setup(queue, wait_time_seconds=3)
    idle = fleet.start(setup, options(queue, pool="solo"))  # the quickest to shut down
    send = setup.app().send_task
    send("any.work", (0.1,))
    ledger.wait("end")
    eventually(lambda: moto.counts(queue) == (0, 0), what="it is deleted")
    assert always(lambda: idle.returncode is None, 1.0), "it polls"
    idle.term()
    assert idle.wait(40) == 0
    send("any.work", (0.1,))
    assert always(lambda: moto.counts(queue) == (1, 0), 1.0), "it left a poll behind that took it"


def test_a_drained_worker_takes_nothing_and_goes_on_when_told(
    moto: MotoServer, fleet: WorkerFleet, ledger: Ledger
) -> None:
    """A poll that was under way brings a message all the same, which goes back as it comes."""
    queue = moto.fresh_queue(VisibilityTimeout="600")
    setup = moto.setup(queue, wait_time_seconds=3)
    worker = fleet.start(setup, options(queue))
    Drained(
        worker=worker,
        ledger=ledger,
        send=partial(setup.app().send_task, "any.work"),
        ready=lambda: moto.counts(queue)[0],
        **by_signal(worker),
    ).check()


def test_a_worker_outlives_an_outage(
    moto: MotoServer, queue: str, fleet: WorkerFleet, ledger: Ledger
) -> None:
    """Polls, extensions and acknowledgements fail, and work goes on when SQS is back.

    Plain kombu 5.7 ends the worker at the first poll that is not answered.
    """
    with Gate(moto.port) as gate:
        worker = fleet.start(moto.setup(queue, port=gate.port), options(queue, concurrency=2))
        send = moto.setup(queue).app().send_task
        lost = send("any.work", (9.0,))
        ledger.wait("start", lost.id)
        finished = send("any.work", (1.0,))
        ledger.wait("start", finished.id)
        gate.close()
        worker.wait_log("SQS does not serve polls")
        ledger.wait("end", finished.id)
        worker.wait_log(f"task any.work[{lost.id}] lost its lease")
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
    tasks = [send("any.work", (0.7,)) for _ in range(3)]
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
    setup.app().send_task("any.refuse")
    eventually(lambda: moto.counts(dead)[0] == 1, 30, what="it is in the dead-letter queue")
    assert ledger.count("start") == 2
    assert always(lambda: moto.counts(queue) == (0, 0), 0.5)
