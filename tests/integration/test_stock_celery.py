"""What plain Celery does with long tasks on Redis: the faults that leases are for.

The sweep for expired messages is set to once a second by two transport options that kombu 5.5 does
not have: there it comes about every 100 s, and the same faults take that much longer to show.

Measured on Celery 5.7.0, kombu 5.7.0, Valkey 9.1, two cores. The scenarios share nothing, so they
all run at the same time and each test reads its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from kombu.transport.redis import Channel

from harness.app import early, gate_path, gated, long
from harness.scenarios import Scenarios, playing
from harness.setup import Setup
from harness.waiting import always, eventually
from harness.workers import WorkerFleet, WorkerOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import redis

    from harness.brokers import RedisServer
    from harness.ledger import Ledger

pytestmark = [
    pytest.mark.stock,
    pytest.mark.skipif(
        not hasattr(Channel, "unacked_restore_throttle"),
        reason="this kombu sweeps every 100 s, whatever it is told",
    ),
]


class Stage:
    """One scenario's database, workers and ledger."""

    def __init__(self, server: RedisServer, directory: Path) -> None:
        directory.mkdir()
        options = {
            "visibility_timeout": 3,
            "unacked_restore_interval": 1,
            "unacked_restore_throttle": 1,
        }
        self.setup = Setup(server.fresh_url(), conf={"broker_transport_options": options})
        self.broker: redis.Redis = server.client(self.setup.database)
        self.fleet = WorkerFleet(directory)
        self.gate = str(directory / "gate")

    @property
    def ledger(self) -> Ledger:
        return self.fleet.ledger

    def send(self, name: str, *args: object, countdown: float | None = None) -> None:
        with self.setup.app() as app:
            app.send_task(name, args, countdown=countdown)

    def in_flight(self) -> int:
        """Return how many messages the broker holds as delivered and not acknowledged."""
        return self.broker.hlen("unacked")

    def waiting(self) -> int:
        """Return how many messages a worker could take."""
        return self.broker.llen("celery")

    def close(self) -> None:
        self.fleet.close()
        self.broker.close()


def run_long(stage: Stage) -> Ledger:
    """One task of 15 s, two workers with room for it."""
    stage.send(long.name, 15.0)
    stage.fleet.start_many(2, stage.setup, WorkerOptions(concurrency=3))
    stage.ledger.wait("start", count=3, within=30)
    return stage.ledger


def wait_for_eta(stage: Stage) -> Ledger:
    """One short task, due 8 s after it was sent, and acknowledged as soon as it starts."""
    stage.fleet.start_many(2, stage.setup)
    stage.send(early.name, 0.5, countdown=8.0)
    stage.ledger.wait("end", count=2, within=60)
    return stage.ledger


@dataclass(frozen=True, slots=True)
class LateAck:
    """The broker's view of one message that two workers run."""

    claims_while_both_ran: int
    claims_after_first_ack: int
    left_after_second_died: int
    ends: int


def acknowledge_late(stage: Stage) -> LateAck:
    """The first holder ends while the second one runs; then the second one dies."""
    setup = stage.setup.having(worker_prefetch_multiplier=1)  # a busy worker takes nothing
    workers = {worker.hostname: worker for worker in stage.fleet.start_many(2, setup)}
    stage.send(gated.name, stage.gate)
    first, second = (entry.worker for entry in stage.ledger.wait("start", count=2)[:2])
    claims = stage.in_flight()
    gate_path(stage.gate, first).touch()
    workers[first].wait_log("succeeded")
    eventually(lambda: stage.in_flight() < claims, 2.0, what="acknowledgement by the first")
    left = stage.in_flight()
    workers[second].kill_group()
    workers[second].wait()
    return LateAck(claims, left, stage.in_flight() + stage.waiting(), stage.ledger.count("end"))


@dataclass(frozen=True, slots=True)
class Shutdown:
    """What a stopping worker holds back."""

    held_while_running: bool
    returned_after_end: int


def shut_down(stage: Stage) -> Shutdown:
    """A worker with one running and three prefetched messages is told to stop."""
    setup = stage.setup.having(broker_transport_options={"visibility_timeout": 3600})
    for _ in range(4):
        stage.send(gated.name, stage.gate)
    worker = stage.fleet.start(setup)
    stage.ledger.wait("start")
    eventually(lambda: stage.in_flight() == 4, what="prefetched messages")
    worker.term()
    worker.wait_log("Warm shutdown")
    held = always(lambda: stage.waiting() == 0, during=3.0)
    gate_path(stage.gate, worker.hostname).touch()
    worker.wait()
    return Shutdown(held, stage.waiting())


SCENARIOS: tuple[Callable[[Stage], object], ...] = (
    run_long,
    wait_for_eta,
    acknowledge_late,
    shut_down,
)


@pytest.fixture(scope="module")
def scenarios(valkey: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scenarios]:
    """All scenarios, started together."""
    directory = tmp_path_factory.mktemp("stock")
    stages = {each: Stage(valkey, directory / each.__name__) for each in SCENARIOS}
    with playing(stages, len(SCENARIOS)) as scenarios:
        yield scenarios


def test_a_task_longer_than_the_visibility_timeout_is_started_again_and_again(
    scenarios: Scenarios,
) -> None:
    """One task of 15 s, timeout 3 s: measured 5 starts, 3.0 s apart, all 5 running at the same
    time.
    """
    ledger = scenarios.outcome(run_long)
    assert ledger.count("start") >= 3
    assert ledger.most_at_once() >= 2
    assert len({entry.task_id for entry in ledger.entries()}) == 1


def test_a_task_due_after_the_visibility_timeout_runs_several_times(scenarios: Scenarios) -> None:
    """One task due in 8 s, timeout 3 s, acknowledged before it runs: measured one run on each of
    the two workers, 1 ms apart.
    """
    ledger = scenarios.outcome(wait_for_eta)
    assert ledger.count("start") >= 2
    assert len({entry.task_id for entry in ledger.entries()}) == 1


def test_a_stale_acknowledgement_deletes_the_claim_of_the_new_holder(scenarios: Scenarios) -> None:
    """The first holder's ack leaves 0 of 1 claims while the second still runs; the second is
    killed, and the message is nowhere.
    """
    outcome = scenarios.outcome(acknowledge_late)
    assert outcome == LateAck(
        claims_while_both_ran=1, claims_after_first_ack=0, left_after_second_died=0, ends=1
    )


def test_a_stopping_worker_keeps_unstarted_messages_until_its_running_task_ends(
    scenarios: Scenarios,
) -> None:
    """Three prefetched messages were held for all of the 3 s that the running task took after
    SIGTERM, and came back when it ended.
    """
    outcome = scenarios.outcome(shut_down)
    assert outcome == Shutdown(held_while_running=True, returned_after_end=3)
