"""What one poll brought, in every pool, at the brokers that give out many messages at once.

A pool without a free slot makes the delivery of a message wait (gevent, eventlet), or runs it
before the next one is delivered (solo): all that came with it is the worker's to hold, too. One
worker of each pool does the same at the same time; each test reads one fact of one play.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from harness.app_leased import EXTENSION
from harness.ledger import now
from harness.places import PGMQ, Place, place_of
from harness.waiting import always, eventually
from harness.workers import Worker, WorkerFleet, WorkerOptions

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(300), pytest.mark.long]

POOLS = ["prefork", "threads", "solo", "gevent", "eventlet"]
BROKERS = ["sqs", *PGMQ]
#: Seconds for which a queue hides what was received, where that must be short, or must not matter.
SHORT, LONG = 5, 120
#: Seconds that a busy machine may take longer.
MARGIN = 5.0
#: Plays at the same time.
AT_ONCE = 5


@dataclass(frozen=True)
class Play:
    """One pool at one broker, with a worker that runs one task at a time."""

    pool: str
    fleet: WorkerFleet
    hides_briefly: Place
    hides_long: Place

    def launch(self, place: Place) -> Worker:
        options = WorkerOptions(
            module="harness.app_leased", queues=place.queue, pool=self.pool, concurrency=1
        )
        return self.fleet.launch(place.setup, options)

    def send(self, place: Place, count: int, task: str, *args: object) -> list[str]:
        app = place.app()
        return [str(app.send_task(f"any.{task}", args).id) for _ in range(count)]

    def run(self) -> dict[str, Any]:
        """Play it all and return what was seen."""
        return {**self.hold(), **self.lose(), **self.leave()}

    def hold(self) -> dict[str, Any]:
        """Let messages wait behind a task for longer than their queue hides them."""
        place, ledger = self.hides_briefly, self.fleet.ledger
        waiting = self.send(place, 1, "work", 2.5 * SHORT) + self.send(place, 3, "work", 0.1)
        self.launch(place).wait_ready(90)
        for task_id in waiting:
            ledger.wait("end", task_id, within=90)
        starts = [ledger.entries("start", task_id) for task_id in waiting]
        return {"waited": [[each.facts["deliveries"] for each in runs] for runs in starts]}

    def lose(self) -> dict[str, Any]:
        """Let a task retry at once, and kill its worker in the next one."""
        place, ledger = self.hides_briefly, self.fleet.ledger
        (retried,) = self.send(place, 1, "again")
        ledger.wait("end", retried, within=60)
        (lost,) = self.send(place, 1, "work", 60.0, 0.1)
        ledger.wait("start", lost, within=60)
        self.fleet.workers[-1].kill_group()
        self.launch(place).wait_ready(90)
        ledger.wait("end", lost, within=60)
        eventually(lambda: place.left() == 0, 30, every=0.1, what="nothing is left")
        self.fleet.workers[-1].kill_group()
        starts = [ledger.entries("start", task_id) for task_id in (retried, lost)]
        return {"tokens": [[each.facts["token"] for each in runs] for runs in starts]}

    def leave(self) -> dict[str, Any]:
        """Kill a worker that holds what waits, and ask another one to stop."""
        place, ledger = self.hides_long, self.fleet.ledger
        tasks = self.send(place, 4, "work", 60.0)
        killed = self.take(place)
        killed.kill_group()
        killed_at = now()
        eventually(lambda: place.waiting() == len(tasks), LONG, what="all are back")
        taken_over = now() - killed_at
        before = ledger.count("start")
        asked = self.take(place)
        asked_at = now()
        asked.term()
        eventually(lambda: place.waiting() >= 3, LONG, what="three are back")
        handed_back = now() - asked_at
        asked.wait(60)
        started = [each.task_id for each in ledger.entries("start")[before:]]
        return {
            "taken over": taken_over,
            "handed back": handed_back,
            "started": len(set(started)),
            "left": place.left(),
        }

    def take(self, place: Place) -> Worker:
        """Return a new worker that runs one task and holds all others."""
        before = self.fleet.ledger.count("start")
        worker = self.launch(place).wait_ready(90)
        self.fleet.ledger.wait("start", count=before + 1)
        eventually(lambda: place.waiting() == 0, 20, what="all are received")
        assert always(lambda: place.waiting() == 0, 1.5, every=0.1), "and the keeper was there"
        return worker


@pytest.fixture(scope="module")
def plays(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[tuple[str, str], Future[dict[str, Any]]]]:
    """Begin the plays of all tests that were chosen."""
    chosen = {
        (item.callspec.params["broker"], item.callspec.params["pool"])
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.path == request.path
    }
    fleets, futures = [], {}
    with ThreadPoolExecutor(AT_ONCE) as threads:
        for broker, pool in sorted(chosen):
            fleet = WorkerFleet(tmp_path_factory.mktemp(f"{broker}-{pool}"), f"{broker}-{pool}")
            fleets.append(fleet)
            brief, long = (place_of(broker, request, visibility=each) for each in (SHORT, LONG))
            futures[broker, pool] = threads.submit(Play(pool, fleet, brief, long).run)
        yield futures
        for future in futures.values():
            future.cancel()
    for fleet in fleets:
        fleet.close()


@pytest.fixture(params=POOLS)
def pool(request: pytest.FixtureRequest) -> str:
    """A pool."""
    return str(request.param)


@pytest.fixture(params=BROKERS)
def broker(request: pytest.FixtureRequest) -> str:
    """A broker."""
    return str(request.param)


@pytest.fixture
def seen(plays: Any, broker: str, pool: str) -> dict[str, Any]:
    """What a play came to, once it is over."""
    result: dict[str, Any] = plays[broker, pool].result()
    return result


def test_what_waits_for_a_slot_is_held_from_its_receipt(seen: dict[str, Any]) -> None:
    """I1: and received once, or a redrive policy would take it for poison, unrun."""
    assert seen["waited"] == [[1]] * 4


@pytest.mark.parametrize("of", ["retries", "redeliveries"])
def test_a_token_grows(seen: dict[str, Any], of: str) -> None:
    """Over a task's retries, which are messages of their own, and over deliveries of one."""
    tokens = seen["tokens"][of == "redeliveries"]
    assert len(tokens) > 1
    assert tokens == sorted(set(tokens))


def test_what_waits_in_a_killed_worker_is_back_when_its_lease_ends(seen: dict[str, Any]) -> None:
    """I5: not when the queue's long timeout does."""
    assert seen["taken over"] < EXTENSION + 1 + MARGIN


def test_what_waits_goes_back_at_once_when_the_worker_is_asked_to_stop(
    seen: dict[str, Any],
) -> None:
    """I6: while a task holds the only slot, and nothing is lost or started on the way out."""
    assert seen["handed back"] < 1 + MARGIN
    assert (seen["started"], seen["left"]) == (1, 4)
