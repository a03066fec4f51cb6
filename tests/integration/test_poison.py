"""Messages that are lost again and again end in the dead-letter queue, and their tasks fail."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import redis
from celery import chord

from celery_lease import brokers
from celery_lease.core.delivery import Answer
from harness.clients import client
from harness.lease_desk import Bench, bodies
from harness.setup import Setup
from harness.waiting import always, eventually
from harness.workers import WorkerFleet, WorkerOptions

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from celery import Celery

    from harness.brokers import RedisServer
    from harness.lease_desk import Desk
    from harness.ledger import Ledger
    from harness.workers import Worker

pytestmark = pytest.mark.long

MODULE = "harness.app_poison"
CONF = {"lease_extension": 3}


@pytest.fixture(params=["valkey", "redis_server"])
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    """A database on each server; its keys have a prefix."""
    server: RedisServer = request.getfixturevalue(request.param)
    bench = Bench(server.fresh_url(), options={"global_keyprefix": "app:"})
    yield bench
    bench.close()


def database(bench: Bench) -> Any:
    """Return a client that shows the database as it is."""
    return redis.Redis.from_url(bench.url, socket_timeout=20)


def lose(desk: Desk, times: int) -> Any:
    """Lose a message some times, as when its process dies, and return its last delivery."""
    for _ in range(times):
        (message,) = desk.receive()
        tags = [message.claim.tag]
        assert desk.driver.requeue(tags, orderly=False, front=True) == [Answer.HELD]
        eventually(lambda: desk.driver.reap(limit=5) or not desk.receives_nothing(0.1), within=20)
    return desk.receive()[0]


@pytest.mark.compat
def test_a_dead_letter_is_a_message_with_its_history(bench: Bench) -> None:
    """It can be read by anybody, and run again by whatever moves it to a queue."""
    bench.publish("a", priority=5)
    desk = bench.desk()
    message = lose(desk, 2)
    assert (message.claim.losses, message.claim.deliveries) == (2, 3)
    assert desk.driver.dead_letter(message.claim.tag, "q.dead") is Answer.HELD
    (text,) = database(bench).lrange("app:q.dead", 0, -1)
    dead = json.loads(text)["dead"]
    assert (dead["queue"], dead["key"], dead["losses"]) == ("q", "app:q\x06\x163", 2)
    assert [each["reason"] for each in dead["history"]] == ["given up"] * 2
    assert [each["deliveries"] for each in dead["history"]] == [1, 2]
    assert all(each["since"] <= each["ended"] for each in dead["history"])
    tokens = [each["token"] for each in dead["history"]]
    assert tokens[0] < tokens[1] < message.claim.token
    assert database(bench).keys("app:unacked.history.*") == []
    with bench.desk("q.dead") as reader:
        (again,) = reader.receive()
        assert again.payload == "a"
        assert (again.claim.losses, again.claim.deliveries) == (0, 1)


@pytest.mark.compat
def test_only_the_holder_dead_letters_and_asking_again_says_the_same(bench: Bench) -> None:
    """A former holder moves nothing; an answer that got lost can be asked for again."""
    bench.publish("a")
    desk = bench.desk()
    (message,) = desk.receive()
    stale = message.claim.tag
    desk.driver.requeue([stale], orderly=True, front=True)
    (message,) = desk.receive()
    assert desk.driver.dead_letter(stale, "q.dead") is Answer.LOST
    assert desk.extend(message) is Answer.HELD
    assert [desk.driver.dead_letter(message.claim.tag, "q.dead") for _ in range(2)] == [
        Answer.HELD
    ] * 2
    assert bench.waiting("q.dead") == 1
    assert desk.driver.complete([message.claim.tag]) == [Answer.LOST]


@pytest.mark.compat
def test_a_message_rests_from_its_second_loss_on(bench: Bench) -> None:
    """Else it would go round as fast as processes can die of it; its holder has no say any more."""
    bench.publish("a")
    desk = bench.desk()
    tags = []
    for _ in range(2):
        (message,) = desk.receive()
        tags.append(message.claim.tag)
        assert desk.driver.requeue(tags[-1:], orderly=False, front=True) == [Answer.HELD]
    assert always(lambda: not desk.driver.reap(limit=5), during=0.8, every=0.2)
    assert bench.waiting() == 0
    assert desk.driver.complete(tags) == [Answer.LOST] * 2
    (back,) = eventually(lambda: desk.driver.reap(limit=5))
    assert back.rested
    (message,) = desk.receive()
    assert bodies([message]) == ["a"]
    assert message.claim.losses == 2
    history = database(bench).keys("app:unacked.history.*")
    assert [database(bench).llen(key) for key in history] == [2]


class Stage:
    """One worker that is given everything that can go wrong with a message, at once."""

    def __init__(self, setup: Setup, fleet: WorkerFleet, app: Celery) -> None:
        from harness import app_poison as tasks

        self.setup, self.fleet, self.app, self.tasks = setup, fleet, app, tasks

    @property
    def ledger(self) -> Ledger:
        return self.fleet.ledger

    def worker(self, pool: str = "prefork", concurrency: int = 2) -> Worker:
        return self.fleet.launch(
            self.setup, WorkerOptions(module=MODULE, pool=pool, concurrency=concurrency)
        )

    def send(self, name: str, task_id: str, **options: Any) -> None:
        self.app.send_task(f"poison.{name}", task_id=task_id, **options)

    def result(self, task_id: str, within: float = 60) -> Any:
        """Return what a task came to, once it came to something."""
        result = self.app.AsyncResult(task_id)
        eventually(result.ready, within, what=f"end of {task_id}: {self.ledger.entries()}")
        return result.result

    def letter(self, task_id: str, queue: str = "celery.dead") -> Any:
        """Return a dead letter."""
        broker = redis.Redis.from_url(self.setup.broker, socket_timeout=5)
        texts = [json.loads(text) for text in broker.lrange(queue, 0, -1)]
        (found,) = [text for text in texts if text["headers"]["id"] == task_id]
        return found


@pytest.fixture(scope="module")
def stage(valkey: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A worker that runs on while messages die on it."""
    url = valkey.fresh_url()
    setup = Setup(url, backend=url, conf=CONF)
    fleet = WorkerFleet(tmp_path_factory.mktemp("poison"))
    with client(setup, lambda app: app) as app:
        stage = Stage(setup, fleet, app)
        worker = stage.worker()
        errbacks = {"link_error": [app.signature("poison.errback")]}
        stage.send("kills", "kills", **errbacks)
        stage.send("crashes", "crashes")
        stage.send("limited", "limited")
        stage.send("memory", "memory", **errbacks)
        body = app.signature("poison.chord", options={"task_id": "body"})
        header = [
            app.signature("poison.kills", options={"task_id": "part"}, app=app),
            app.signature("poison.fine", app=app),
        ]
        chord(header, app=app)(body)
        worker.wait_ready()
        yield stage
    fleet.close()


@pytest.mark.chaos
def test_a_task_that_kills_its_process_is_given_up(stage: Stage) -> None:
    """After lease_max_deliveries it fails with the reason, and errback and signal tell of it."""
    error = stage.result("kills")
    assert type(error).__name__ == "TooManyDeliveries"
    assert error.args == ("kills", 2, "celery.dead")
    assert stage.app.AsyncResult("kills").state == "FAILURE"
    starts = stage.ledger.entries("start", "kills")
    assert [each.facts["deliveries"] for each in starts] == [1, 2]
    stage.ledger.wait("errback", "kills")
    assert [each.facts for each in stage.ledger.entries("failed", "kills")] == [
        {"error": "TooManyDeliveries"}
    ]
    history = stage.letter("kills")["dead"]["history"]
    assert [each["deliveries"] for each in history] == [1, 2]
    assert {each["worker"].partition(":")[0] for each in history} == {"w1@harness"}
    assert [(each["cause"], each["note"], each["done"], each["total"]) for each in history] == [
        ("SIGKILL, perhaps out of memory", "sawing", 3, 10)
    ] * 2
    log = stage.fleet.workers[0].log
    assert "(SIGKILL, perhaps out of memory; its last note: 'sawing'; 3 done of 10)" in log


@pytest.mark.chaos
def test_a_task_that_crashes_leaves_its_stack(stage: Stage) -> None:
    """In the log, and with its dead letter.

    Failed before with: no stack.
    """
    assert type(stage.result("crashes")).__name__ == "TooManyDeliveries"
    (loss,) = stage.letter("crashes")["dead"]["history"]
    assert loss["cause"] == "SIGSEGV"
    assert loss["stack"].startswith("Segmentation fault")
    assert "in crashes" in loss["stack"]
    assert "celery/app/trace.py" not in loss["stack"]
    assert loss["stack"] in stage.fleet.workers[0].log


@pytest.mark.chaos
def test_a_chord_is_told_of_a_part_that_was_given_up(stage: Stage) -> None:
    """Its body fails, rather than wait for ever."""
    assert type(stage.result("part")).__name__ == "TooManyDeliveries"
    assert type(stage.result("body")).__name__ == "ChordError"
    assert stage.ledger.count("body") == 0


@pytest.mark.chaos
def test_a_hard_limit_that_does_not_acknowledge_has_a_brake(stage: Stage) -> None:
    """Each run into the limit counts as a loss."""
    # Celery stores each run into the limit as a failure, though the message goes back.
    eventually(lambda: type(stage.result("limited")).__name__ == "TooManyDeliveries", 60)
    assert stage.ledger.count("start", "limited") == 1
    assert stage.letter("limited")["dead"]["losses"] == 1


@pytest.mark.chaos
def test_a_task_out_of_memory_fails_and_its_worker_goes_on(stage: Stage) -> None:
    """Celery 5.7 ends the worker for it, and then the next one that gets the message."""
    assert type(stage.result("memory")).__name__ == "MemoryError"
    stage.ledger.wait("errback", "memory")
    stage.send("fine", "fine")
    assert stage.result("fine").startswith("w1@harness")
    assert stage.ledger.count("start", "memory") == 1
    assert stage.fleet.workers[0].returncode is None


@pytest.mark.compat
@pytest.mark.chaos
def test_a_message_that_kills_solo_workers_kills_no_more_than_it_may(
    valkey: RedisServer, tmp_path: Path
) -> None:
    """The loss is counted from receipt: nobody is left to count it. The next worker is spared."""
    url = valkey.fresh_url()
    setup = Setup(url, backend=url, conf=CONF)
    fleet = WorkerFleet(tmp_path)
    with client(setup, lambda app: app) as app:
        stage = Stage(setup, fleet, app)
        stage.send("kills", "kills")
        for _ in range(2):
            stage.worker("solo").wait(60)
        last = stage.worker("solo")
        assert type(stage.result("kills")).__name__ == "TooManyDeliveries"
        assert last.returncode is None
        history = stage.letter("kills")["dead"]["history"]
        assert [each["reason"] for each in history] == ["expired", "expired"]
        workers = [each["worker"].partition(":")[0] for each in history]
        assert workers == ["w1@harness", "w2@harness"]
    fleet.close()


@pytest.mark.chaos
def test_a_worker_that_was_started_again_says_that_the_former_one_died(
    setup: Setup, fleet: WorkerFleet
) -> None:
    """Under its name: so it does not run any more. Nobody else can know."""
    setup = setup.having(**CONF)
    with client(setup, lambda app: app) as app:
        stage = Stage(setup, fleet, app)
        worker = stage.worker("solo")
        stage.send("kills", "kills")
        for _ in range(2):
            worker.wait(60)
            worker.start()
        stage.ledger.wait("failed", "kills", within=60)
        history = stage.letter("kills")["dead"]["history"]
        assert [each["reason"] for each in history] == ["expired", "expired"]
        assert {each["cause"] for each in history} == {"its worker died"}


@pytest.mark.chaos
@pytest.mark.compat
def test_a_message_of_an_old_client_is_given_up_as_any_other(
    setup: Setup, fleet: WorkerFleet
) -> None:
    """Protocol 1 in YAML: name and id are in the body, and the letter tells them.

    Failed before: it ran without a lease, and killed one process after the other.
    """
    accepting = setup.having(**CONF, accept_content=["json", "yaml"])
    with client(accepting.having(task_protocol=1, task_serializer="yaml"), lambda app: app) as app:
        stage = Stage(accepting, fleet, app)
        stage.send("kills", "old")
        stage.worker(concurrency=1)
        assert type(stage.result("old")).__name__ == "TooManyDeliveries"
        starts = stage.ledger.entries("start", "old")
        assert [each.facts["deliveries"] for each in starts] == [1, 2]
        with app.connection_for_read() as connection:
            letters = brokers.driver(connection.channel()).dead_letters()
            (letter,) = letters.letters("celery.dead")
            assert (letter.task, letter.task_id) == ("poison.kills", "old")


@pytest.mark.chaos
def test_what_kills_workers_before_the_broker_knows_of_it_kills_one_more_at_most(
    valkey: RedisServer, tmp_path: Path
) -> None:
    """A worker that dies right after a start may go uncounted once, and no more."""
    url = valkey.fresh_url()
    setup = Setup(url, backend=url, conf=CONF)
    fleet = WorkerFleet(tmp_path)
    with client(setup, lambda app: app) as app:
        stage = Stage(setup, fleet, app)
        stage.send("kills", "kills")
        result = app.AsyncResult("kills")

        def is_over(worker: Worker) -> bool:
            return worker.returncode is not None or result.ready()

        while not result.ready() and len(fleet.workers) < 4:
            worker = stage.worker("threads", concurrency=1)
            eventually(partial(is_over, worker), 60)
        assert type(stage.result("kills")).__name__ == "TooManyDeliveries"
        assert stage.letter("kills")["dead"]["losses"] == 2
        assert stage.ledger.count("start", "kills") <= 3
    fleet.close()


@pytest.mark.compat
@pytest.mark.chaos
@pytest.mark.timeout(240)
@pytest.mark.parametrize("pool", ["prefork", "threads", "solo", "gevent", "eventlet"])
def test_a_message_that_only_waited_when_its_worker_was_killed_has_lost_nothing(
    valkey: RedisServer, tmp_path: Path, pool: str
) -> None:
    """For its ETA, or prefetched behind a task that kills each worker; that one is given up."""
    url = valkey.fresh_url()
    setup = Setup(url, backend=url, conf=CONF)
    fleet = WorkerFleet(tmp_path)
    with client(setup, lambda app: app) as app:
        stage = Stage(setup, fleet, app)
        stage.send("innocent", "early", countdown=1000)
        stage.send("kills_worker", "kills", args=[pool])
        stage.send("innocent", "behind")
        for _ in range(2):
            stage.worker(pool, concurrency=1).wait(60)
        third = stage.worker(pool, concurrency=1)
        assert type(stage.result("kills")).__name__ == "TooManyDeliveries"
        assert isinstance(stage.result("behind"), int)
        broker = redis.Redis.from_url(url, socket_timeout=5)

        def held_last() -> Any:
            """Return what the third worker holds, once it does."""
            records = [json.loads(each) for each in broker.hvals("unacked.claims")]
            return [
                each
                for each in records
                if each.get("id") == "early" and each["worker"].startswith(third.hostname)
            ]

        (record,) = eventually(held_last, 30, what=lambda: str(broker.hvals("unacked.claims")))
        assert record["deliveries"] > 1  # the second worker may have been killed before it came
        assert record["losses"] == 0
        assert broker.lrange("celery.dead", 0, -1) != []
        assert stage.letter("kills")["dead"]["losses"] == 2
    fleet.close()
