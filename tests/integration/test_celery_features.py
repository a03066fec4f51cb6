"""Celery stays Celery: every scenario is run with plain and with leased tasks, side by side."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from celery import chain, chord, group

from harness.app_features import KINDS, register
from harness.clients import client
from harness.monitor import listening
from harness.setup import Setup
from harness.waiting import eventually
from harness.workers import QUIET_PEERS, WorkerFleet, WorkerOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery import Celery
    from celery.canvas import Signature
    from celery.result import AsyncResult

    from harness.brokers import RedisServer
    from harness.ledger import Ledger


pytestmark = pytest.mark.compat

WAIT = 30.0
MODULE = "harness.app_features"


@dataclass(slots=True)
class World:
    """A worker with both kinds of tasks, and a client of it."""

    app: Celery
    setup: Setup
    valkey: RedisServer
    ledger: Ledger
    hostname: str
    events: dict[str, list[str]] = field(default_factory=dict)

    def state(self) -> dict[str, int]:
        """Return how many messages the broker still knows as delivered."""
        with self.valkey.client(self.setup.database) as client:
            names = ["unacked", "unacked.claims"]
            return {name: client.hlen(name) for name in names} | {
                name: client.zcard(name) for name in ["unacked_index", "unacked.leases"]
            }


def options(pool: str, *extra: str) -> WorkerOptions:
    return WorkerOptions(module=MODULE, pool=pool, concurrency=2, extra=(*QUIET_PEERS, *extra))


@contextmanager
def world_of(valkey: RedisServer, fleet: WorkerFleet, pool: str) -> Iterator[World]:
    url = valkey.fresh_url()
    setup = Setup(
        url, backend=url, conf={"lease_extension": 10, "result_chord_retry_interval": 0.1}
    )
    worker = fleet.start(setup, options(pool, "-E"))
    with client(setup, register) as app:
        world = World(app, setup, valkey, fleet.ledger, worker.hostname)
        with watching(app, world.events):
            yield world


@contextmanager
def watching(app: Celery, events: dict[str, list[str]]) -> Iterator[None]:
    """Note the events of all tasks by id, in their order."""

    def note(event: dict[str, Any]) -> None:
        if "uuid" in event:
            events.setdefault(event["uuid"], []).append(event["type"])

    done = threading.Event()
    with listening(app, note) as listen:

        def listen_on() -> None:
            while not done.is_set():
                listen()

        thread = threading.Thread(target=listen_on)
        thread.start()
        yield
        done.set()
        thread.join()


@pytest.fixture(scope="module")
def world(valkey: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """The worker of this module, with a pool of processes."""
    fleet = WorkerFleet(tmp_path_factory.mktemp("features"))
    with world_of(valkey, fleet, "prefork") as world:
        yield world
    fleet.close()


@dataclass(frozen=True, slots=True)
class Side:
    """One kind of tasks in a world."""

    world: World
    kind: str

    def sig(self, name: str, *args: Any, **kwargs: Any) -> Signature[Any]:
        return self.world.app.tasks[f"{self.kind}.{name}"].s(*args, **kwargs)

    def send(self, name: str, *args: Any, **options: Any) -> AsyncResult[Any]:
        return self.sig(name, *args).apply_async(**options)

    def ended(self, result: AsyncResult[Any]) -> tuple[str, str]:
        """Return the state that a task ended in, and what it returned or raised."""
        value = result.get(timeout=WAIT, propagate=False)
        return result.state, repr(value)

    def events(self, result: AsyncResult[Any], last: str) -> list[str]:
        seen = self.world.events
        eventually(lambda: last in seen.get(result.id, []), WAIT)
        return [kind for kind in seen[result.id] if kind.startswith("task-")]


def outcome(name: str, *args: Any, **options: Any) -> Callable[[Side], Any]:
    return lambda side: side.ended(side.send(name, *args, **options))


def succeeds_with_events(side: Side) -> Any:
    result = side.send("add", 1, 2)
    return side.ended(result), side.events(result, "task-succeeded")


def retries_with_events(side: Side) -> Any:
    """The next try may begin in another process before the last one's end is told."""
    result = side.send("retry", 2)
    ended = side.ended(result)
    eventually(lambda: len(side.events(result, "task-succeeded")) == 9, WAIT)
    return ended, sorted(side.events(result, "task-succeeded"))


def fails_with_events(side: Side) -> Any:
    result = side.send("fail", "text")
    ended = side.ended(result)
    return ended, side.events(result, "task-failed"), "ValueError: text" in str(result.traceback)


def hard_limit_with_events(side: Side) -> Any:
    result = side.send("hard")
    ended = side.ended(result)
    events = side.events(result, "task-failed")
    return ended, events[:2], sorted(set(events))


def rejected(side: Side) -> Any:
    return side.events(side.send("reject"), "task-rejected")


def ignored(side: Side) -> Any:
    result = side.send("ignore")
    eventually(lambda: result.state == "MINE", WAIT)
    side.ended(side.send("add", 1, 1))
    return result.state, result.info


def expired(side: Side) -> Any:
    result = side.send("add", 1, 2, expires=datetime.now(UTC) - timedelta(seconds=5))
    return side.ended(result), side.events(result, "task-revoked")


def with_eta(side: Side) -> Any:
    return side.ended(side.send("add", 1, 2, countdown=1))


def by_protocol_1(side: Side) -> Any:
    app = side.world.app
    app.conf.task_protocol = 1
    app.amqp.__dict__.pop("create_task_message", None)
    try:
        return side.ended(side.send("add", 1, 2)), side.ended(side.send("retry", 1))
    finally:
        app.conf.task_protocol = 2
        app.amqp.__dict__.pop("create_task_message", None)


def no_result(side: Side) -> Any:
    ledger = side.world.ledger
    before = ledger.count("silent")
    result = side.send("silent", 1)
    ledger.wait("silent", count=before + 1)
    side.ended(side.send("add", 1, 1))
    return result.state


def chained(side: Side) -> Any:
    steps = chain(side.sig("add", 1, 2), side.sig("add", 3), side.sig("add", 4))
    return side.ended(steps.apply_async())


def grouped(side: Side) -> Any:
    result = group(side.sig("add", n, n) for n in range(4)).apply_async()
    return result.get(timeout=WAIT)


def chorded(side: Side) -> Any:
    before = side.world.ledger.count("total")
    result = chord((side.sig("add", n, n) for n in range(4)), side.sig("total")).apply_async()
    return side.ended(result), side.world.ledger.count("total") - before


def chord_with_a_failure(side: Side) -> Any:
    header = [side.sig("add", 1, 1), side.sig("fail", "text")]
    ended = side.ended(chord(header, side.sig("total")).apply_async())
    return ended[0], "text" in ended[1]


def replaced(side: Side) -> Any:
    return side.ended(side.send("replace", 1)), side.ended(
        chain(side.sig("replace", 1), side.sig("add", 10)).apply_async()
    )


def linked(side: Side) -> Any:
    mark = f"{side.kind}.linked"
    side.send("add", 1, 2, link=side.sig("linked", mark), link_error=side.sig("errback", mark=mark))
    side.send("fail", "x", link=side.sig("linked", mark), link_error=side.sig("errback", mark=mark))
    ledger = side.world.ledger
    ledger.wait("errback", mark, within=WAIT)
    ledger.wait("linked", mark, within=WAIT)
    side.ended(side.send("add", 1, 1))
    return [
        [entry.facts for entry in ledger.entries(event, mark)] for event in ("linked", "errback")
    ]


def revoked_before_it_started(side: Side) -> Any:
    result = side.send("add", 1, 2, countdown=2)
    eventually(lambda: "task-received" in side.world.events.get(result.id, []), WAIT)
    side.world.app.control.revoke(result.id)
    return side.ended(result)


def terminated(side: Side) -> Any:
    result = side.send("long")
    side.world.ledger.wait("start", result.id, within=WAIT)
    side.world.app.control.revoke(result.id, terminate=True)
    return side.ended(result), side.events(result, "task-revoked")


def inspected(side: Side) -> Any:
    """Remote control sees a running task, in what can be sent as JSON."""
    result = side.send("long")
    side.world.ledger.wait("start", result.id, within=WAIT)
    inspect = side.world.app.control.inspect([side.world.hostname], timeout=5)
    (active,) = [task for task in inspect.active()[side.world.hostname] if task["id"] == result.id]
    assert json.dumps(active)
    query = inspect.query_task(result.id)[side.world.hostname]
    side.world.app.control.revoke(result.id, terminate=True)
    side.ended(result)
    return active["name"].endswith("long"), active["acknowledged"], query[result.id][0]


SCENARIOS: dict[str, tuple[Callable[[Side], Any], Any]] = {
    "success": (
        succeeds_with_events,
        (("SUCCESS", "3"), ["task-received", "task-started", "task-succeeded"]),
    ),
    "failure": (
        fails_with_events,
        (("FAILURE", "ValueError('text')"), ["task-received", "task-started", "task-failed"], True),
    ),
    "retry": (
        retries_with_events,
        (
            ("SUCCESS", "2"),
            ["task-received"] * 3
            + ["task-retried"] * 2
            + ["task-started"] * 3
            + ["task-succeeded"],
        ),
    ),
    "too many retries": (outcome("retry", 9), ("FAILURE", "ValueError('again')")),
    "autoretry": (outcome("autoretry", 2), ("SUCCESS", "2")),
    "too many autoretries": (outcome("autoretry", 9), ("FAILURE", "ValueError('again')")),
    "reject": (rejected, None),
    "reject and requeue": (outcome("reject_once"), ("SUCCESS", "'second'")),
    "ignore": (ignored, ("MINE", {"done": 1})),
    "worker process lost": (outcome("die_once"), ("SUCCESS", "'second'")),
    "expires": (expired, None),
    "countdown": (with_eta, ("SUCCESS", "3")),
    "rate limit, track_started": (outcome("limited", 1), ("SUCCESS", "1")),
    "ignore_result": (no_result, "PENDING"),
    "soft limit": (outcome("soft", "tidy"), ("SUCCESS", "'tidy'")),
    "soft limit not caught": (outcome("soft", ""), ("FAILURE", "SoftTimeLimitExceeded()")),
    "hard limit": (hard_limit_with_events, None),
    "protocol 1": (by_protocol_1, (("SUCCESS", "3"), ("SUCCESS", "1"))),
    "chain": (chained, ("SUCCESS", "10")),
    "group": (grouped, [0, 2, 4, 6]),
    "chord": (chorded, (("SUCCESS", "12"), 1)),
    "chord with a failure": (chord_with_a_failure, ("FAILURE", True)),
    "replace": (replaced, (("SUCCESS", "3"), ("SUCCESS", "13"))),
    "links": (linked, [[{"result": 3}], [{"exc": "ValueError"}]]),
    "revoke": (revoked_before_it_started, ("REVOKED", "TaskRevokedError('revoked')")),
    "revoke and terminate": (terminated, None),
    "remote control": (inspected, (True, False, "active")),
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_leased_tasks_do_what_plain_ones_do(world: World, name: str) -> None:
    """Outcome, state, events, callbacks: the same, and what this Celery is known to do."""
    scenario, expected = SCENARIOS[name]
    plain, leased = (scenario(Side(world, kind)) for kind in KINDS)
    assert leased == plain
    if expected is not None:
        assert plain == expected


def test_leased_tasks_of_every_form_run_under_a_lease(world: World) -> None:
    """By class, inherited, called inline; a call's own options hold for it."""
    tasks = world.app.tasks
    assert tasks["by_class"].delay(5).get(timeout=WAIT) == ["child", 5, True, 1]
    assert tasks["inline"].delay().get(timeout=WAIT) == [["child", 1, True, 1], 3]
    assert 5 < tasks["remaining"].delay().get(timeout=WAIT) <= 10
    assert 50 < tasks["remaining"].apply_async(lease_extension=60).get(timeout=WAIT) <= 60


def test_nothing_is_left_at_the_broker(world: World) -> None:
    """I5: after all of the above every message was settled, plain or leased."""
    eventually(lambda: not any(world.state().values()), WAIT, what="all messages settled")
