"""Exclusive keys in whole workers: one task of a key at a time, whatever happens to its holder."""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING, Any

import pytest
from celery import chain, chord, states
from celery.exceptions import TaskRevokedError
from click.testing import CliRunner

from celery_lease.brokers.redis import sweeps
from celery_lease.cli.exclusive import exclusive_keys
from celery_lease.cli.sources import sources
from celery_lease.view import Collector
from celery_lease.view.collector import LISTED
from harness.app_keys import EXTENSION
from harness.page import PageServer
from harness.places import PGMQ
from harness.setup import Setup
from harness.shell import Shell
from harness.waiting import always, eventually
from harness.workers import WorkerOptions

if TYPE_CHECKING:
    from pathlib import Path

    from celery import Celery

    from harness.brokers import RedisServer, SentinelSet
    from harness.ledger import Ledger
    from harness.postgres import Database
    from harness.workers import Worker, WorkerFleet

KEYED = WorkerOptions(module="harness.app_keys", concurrency=2)
WORK = "keyed.work"
CONF = {"lease_reaper_interval": 0.5}
DROP, REPLACE = ({"lease": {"lease_on_busy": each}} for each in ("drop", "replace"))


class Scene(ABC):
    """A broker, workers, and gates that keep tasks from ending."""

    workers = ", 1 worker"  #: where a table of leases is from
    #: Of a holder whose lease has expired and the one that waits. Where the broker itself returns
    #: what has expired, that is there first.
    runs_first = ("other", "paused")

    def __init__(self, setup: Setup, fleet: WorkerFleet, directory: Path) -> None:
        self.setup = setup
        self.app: Celery = self.setup.app()
        self.fleet, self.ledger, self._directory = fleet, fleet.ledger, directory

    def worker(self, **options: Any) -> Worker:
        return self.fleet.start(self.setup, replace(KEYED, **options))

    def send(self, task_id: str, key: str = "a", *, gated: bool = True, **options: Any) -> Any:
        gate = str(self._directory / task_id) if gated else ""
        return self.app.send_task(WORK, [key, gate], task_id=task_id, **options)

    def open(self, task_id: str) -> None:
        (self._directory / task_id).touch()

    def parked(self, count: int) -> None:
        eventually(lambda: self._parked() == count, what=f"{count} parked")

    @abstractmethod
    def _parked(self) -> int: ...

    @abstractmethod
    def settled(self) -> None:
        """Wait until nothing is left at the broker of messages and keys."""

    @abstractmethod
    def aside(self, *, back: bool = False) -> None:
        """Hide the line of key a from everybody; *back*: no longer, and it is due for a look."""

    @abstractmethod
    def due(self) -> None:
        """Let the reaper look at what is parked."""

    @abstractmethod
    def waiting(self) -> int:
        """Return how many messages a plain worker would get, once what is parked has timed out."""

    def order(self, *ids: str) -> list[tuple[str, str]]:
        """Return starts and ends of some tasks, as they happened."""
        entries = self.ledger.entries()
        return [(e.event, e.task_id) for e in entries if e.task_id in ids and e.event != "lost"]


class RedisScene(Scene):
    """A database of Valkey."""

    def __init__(self, server: RedisServer, fleet: WorkerFleet, directory: Path) -> None:
        url = server.fresh_url()
        super().__init__(Setup(url, url, CONF), fleet, directory)
        self.client: Any = server.client(self.setup.database)

    def _parked(self) -> int:
        return sum(map(int, self.client.hvals("unacked.parked")))

    def settled(self) -> None:
        left = ("celery", "unacked", "unacked_index", "unacked.claims", "unacked.leases")
        eventually(lambda: not self.client.exists(*left), what="nothing is held")
        names = [*self.client.keys("unacked.parked*"), *self.client.keys("unacked.holders*")]
        assert names == []

    def aside(self, *, back: bool = False) -> None:
        if not back:
            self.client.rename("unacked.parked.k:a", "aside")
            return
        (tag,) = self.client.hkeys("unacked")
        self.client.zadd("unacked.leases", {tag: 1})
        self.ledger.wait("end", "parked")
        self.client.delete("aside", "unacked.parked")  # which no longer counts right

    def due(self) -> None:
        for tag in self.tags():
            self.client.zadd("unacked.leases", {tag: 1}, xx=True)

    def waiting(self) -> int:
        (tag,) = self.tags()
        assert self.client.zscore("unacked_index", tag) > sweeps.ARRIVAL
        with self.app.connection_for_read() as connection:
            connection.transport_options["visibility_timeout"] = 1
            qos = connection.default_channel.qos
            self.client.zadd("unacked_index", {tag: 1})
            qos.restore_visible(interval=1)
        return int(self.client.llen("celery"))

    def tags(self) -> list[bytes]:
        """Return the tags of what is parked."""
        return [each for each in self.client.hkeys("unacked") if each.endswith(b"~")]


class PgmqScene(Scene):
    """A database of PostgreSQL; results are elsewhere."""

    workers = " on the broker's record"
    runs_first = ("paused", "other")

    def __init__(
        self, database: Database, results: str, fleet: WorkerFleet, directory: Path
    ) -> None:
        setup = replace(database.setup(pool_size=1), backend=results).having(**CONF)
        super().__init__(setup, fleet, directory)
        self.database = database

    def _parked(self) -> int:
        return len(self._rows("place IS NOT NULL"))

    def settled(self) -> None:
        eventually(lambda: sum(self.database.counts()) == 0, what="nothing is held")
        eventually(lambda: self._rows("true") == [], what="no key is held")

    def aside(self, *, back: bool = False) -> None:
        if not back:
            self._change("prefix = 'aside'", "place IS NOT NULL")
        else:
            self._change("prefix = '', look_at = 'epoch'", "prefix = 'aside'")

    def due(self) -> None:
        self._change("look_at = 'epoch'", "place IS NOT NULL")

    def waiting(self) -> int:
        row = "SELECT vt < now() + interval '600 s' FROM pgmq.q_celery WHERE last_read_at IS NULL"
        assert self.database.execute(row) == [(True,)], "it comes back by itself"
        self.database.execute("UPDATE pgmq.q_celery SET vt = now() WHERE last_read_at IS NULL")
        with self.app.connection_for_read() as connection:
            return int(connection.default_channel.basic_get("celery") is not None)

    def _rows(self, where: str) -> list[Any]:
        if self.database.execute("SELECT to_regclass(%s)", TABLE) == [(None,)]:
            return []  # nobody has needed a key yet
        return self.database.execute(f"SELECT key FROM {TABLE} WHERE {where}")  # noqa: S608

    def _change(self, values: str, where: str) -> None:
        self.database.execute(f"UPDATE {TABLE} SET {values} WHERE {where}")  # noqa: S608


TABLE = "pgmq.celery_lease_keys"


@pytest.fixture
def redis_scene(valkey: RedisServer, fleet: WorkerFleet, tmp_path: Path) -> RedisScene:
    """A database of its own."""
    return RedisScene(valkey, fleet, tmp_path)


@pytest.fixture(params=["valkey", *PGMQ])
def scene(request: pytest.FixtureRequest, fleet: WorkerFleet, tmp_path: Path) -> Scene:
    """A database of its own, at each broker that has keys."""
    valkey = request.getfixturevalue("valkey")
    if request.param == "valkey":
        return RedisScene(valkey, fleet, tmp_path)
    database = request.getfixturevalue("postgres").fresh_database()
    return PgmqScene(database, valkey.fresh_url(), fleet, tmp_path)


@pytest.mark.compat
@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent"])
def test_one_task_of_a_key_runs_at_a_time_and_holds_nobody_else_up(scene: Scene, pool: str) -> None:
    """In the order in which they came; what needs no key, or another one, runs meanwhile."""
    scene.worker(pool=pool)
    ids = ["a1", "a2", "a3"]
    scene.send("a1")
    scene.ledger.wait("start", "a1")  # of two threads, the later one may take a free key first
    for each in ids[1:]:
        scene.send(each)
    scene.app.send_task("keyed.free", task_id="free")
    scene.send("b1", "b", gated=False)
    scene.ledger.wait("start", "free")
    scene.ledger.wait("end", "b1")
    assert scene.order(*ids) == [("start", "a1")]
    scene.parked(2)
    for each in ids:
        scene.ledger.wait("start", each)
        scene.open(each)
    scene.ledger.wait("end", "a3")
    assert scene.order(*ids) == [(event, each) for each in ids for event in ("start", "end")]
    scene.settled()


def test_what_waits_for_its_time_holds_no_key(scene: Scene) -> None:
    """Nor does a retry; both take it when they start."""
    scene.worker()
    scene.send("before", "b", gated=False)
    scene.ledger.wait("end", "before")  # what is done once takes no part of the countdown
    scene.send("later", countdown=4.0, gated=False)
    scene.send("now")
    scene.ledger.wait("start", "now")
    scene.parked(1)
    assert not scene.ledger.count("start", "later")
    scene.open("now")
    scene.ledger.wait("end", "later")
    scene.settled()
    again = scene.app.send_task("keyed.again", ["a"], headers=DROP)
    assert again.get(timeout=20) == 1
    scene.settled()


@pytest.mark.compat
def test_a_newcomer_is_dropped_or_takes_the_place_of_the_one_that_waits(scene: Scene) -> None:
    """Both end as REVOKED at once, with the id of the task that is why, and their hooks called."""
    scene.worker()
    scene.send("holder")
    scene.ledger.wait("start", "holder")
    dropped = scene.send("dropped", headers=DROP)
    with pytest.raises(TaskRevokedError, match="key k:a is held by task holder"):
        dropped.get(timeout=20)
    first = scene.send("first", headers=REPLACE)
    scene.parked(1)
    scene.send("second", headers=REPLACE, gated=False)
    with pytest.raises(TaskRevokedError, match="replaced by task second"):
        first.get(timeout=20)
    scene.parked(1)
    eventually(lambda: scene.ledger.count("on_failure") == 2, what="hooks")
    scene.open("holder")
    scene.ledger.wait("end", "second")
    assert not scene.ledger.count("start", "dropped") + scene.ledger.count("start", "first")
    scene.settled()


def test_what_revoked_does_to_chains_and_chords(scene: Scene) -> None:
    """As docs/keys.md says: a chord fails, and the rest of a chain stays PENDING."""
    scene.worker()
    scene.send("holder")
    scene.ledger.wait("start", "holder")
    drop = scene.app.signature(WORK, ["a"], headers=DROP)
    free = scene.app.signature("keyed.free", immutable=True)
    broken = chain(drop.clone(), free, app=scene.app).apply_async()
    failed = chord([drop.clone()], free, app=scene.app).apply_async()
    eventually(lambda: broken.parent.state == "REVOKED", what="its end")
    eventually(lambda: failed.state == "FAILURE", what="failure of the chord")
    assert broken.state == "PENDING"
    scene.open("holder")


@pytest.mark.compat
def test_a_key_is_free_when_its_killed_holder_s_lease_has_ended(scene: Scene) -> None:
    """What the killed worker had parked is at the broker; the lost task runs again, alone."""
    first = scene.worker()
    ids = ["a1", "a2", "a3"]
    for each in ids:
        scene.send(each)
    scene.ledger.wait("start", "a1")
    scene.parked(2)
    first.kill_group()
    scene.worker()
    eventually(lambda: len(_running(scene.ledger, ids)) == 1, within=30)
    for each in ids:
        scene.open(each)
    for each in ids:
        scene.ledger.wait("end", each)
    runs = scene.order(*ids)[1:]  # the killed one's start has no end
    assert sorted(runs[::2]) == [("start", each) for each in ids]
    assert [each for _, each in runs[::2]] == [each for _, each in runs[1::2]]
    scene.settled()


def _running(ledger: Ledger, ids: list[str]) -> list[str]:
    return [each for each in ids if ledger.count("start", each) > (each == "a1")]


def test_a_paused_holder_cannot_come_back_into_a_key_that_another_one_holds(scene: Scene) -> None:
    """Its lease is over for good once the key was taken: its next beat raises LeaseLost."""
    first = scene.worker()
    scene.send("paused")
    scene.ledger.wait("start", "paused")
    scene.send("other")
    scene.parked(1)
    scene.worker()
    first.stop_group()
    eventually(lambda: scene.ledger.count("start") == 2, within=EXTENSION + 15)
    first.cont_group()
    scene.ledger.wait("lost", "paused")
    assert scene.ledger.count("start") == 2
    scene.open("other")
    scene.open("paused")
    for each in scene.runs_first:
        scene.ledger.wait("end", each)
    runs = [(event, each) for each in scene.runs_first for event in ("start", "end")]
    assert scene.order("paused", "other")[1:] == runs
    scene.settled()


def test_the_next_one_is_woken_at_once(scene: Scene) -> None:
    """An idle worker has it in a moment; a reaper would have it in seconds."""
    scene.setup = scene.setup.having(lease_reaper_interval=0.9 * EXTENSION)
    scene.worker(concurrency=1)
    ids = [f"a{number}" for number in range(20)]
    scene.send("first")
    scene.ledger.wait("start", "first")
    for each in ids:
        scene.send(each, gated=False)
    scene.parked(len(ids))
    scene.open("first")
    scene.ledger.wait("end", ids[-1])
    entries = [e for e in scene.ledger.entries() if e.event in ("start", "end")]
    gaps = [b.at - a.at for a, b in zip(entries[1::2], entries[2::2], strict=False)]
    assert median(gaps) < 0.5


def test_a_forgotten_message_is_woken_by_a_reaper(scene: Scene) -> None:
    """Whoever should have woken it could not: its key is free, and it is due for a look."""
    scene.worker()
    scene.send("holder")
    scene.ledger.wait("start", "holder")
    scene.send("parked", gated=False)
    scene.parked(1)
    scene.aside()
    scene.open("holder")
    scene.ledger.wait("end", "holder")
    assert always(lambda: not scene.ledger.count("start", "parked"), during=1.5, every=0.2)
    scene.aside(back=True)
    scene.ledger.wait("end", "parked")
    scene.settled()


@pytest.mark.chaos
@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_fail_over_leaves_no_parked_message_stuck_or_lost(
    sentinel_set: SentinelSet, fleet: WorkerFleet, tmp_path: Path
) -> None:
    """One holder ends while there is no master, and the lease of the other one expires."""
    scene = RedisScene(sentinel_set.master, fleet, tmp_path)
    url, options = sentinel_set.fresh_url(), sentinel_set.transport_options
    scene.setup = Setup(url, url, CONF | {"broker_transport_options": options})
    scene.setup = scene.setup.having(result_backend_transport_options=options)
    scene.app, scene.client = scene.setup.app(), sentinel_set.master.client(scene.setup.database)
    scene.worker()
    lines = {key: [f"{key}{number}" for number in range(4)] for key in "ab"}
    for key, (holder, *others) in lines.items():
        extension = {"lease": {"lease_extension": 120}} if key == "a" else {}
        scene.send(holder, key, headers=extension)
        scene.ledger.wait("start", holder)
        for each in others:
            scene.send(each, key, gated=False)
    scene.parked(6)
    scene.worker()
    sentinel_set.wait_replicated()
    sentinel_set.master.kill()
    scene.open("a0")
    scene.ledger.wait("end", "a0")
    promoted = sentinel_set.failover()
    scene.client = promoted.client(scene.setup.database)
    scene.open("b0")
    for each in (*lines["a"], *lines["b"]):
        scene.ledger.wait("end", each, within=80)  # Celery tries less and less often
    assert scene.ledger.count("start", "a0") == 1
    for key, ids in lines.items():
        entries = [(event, each) for event, each in scene.order(*ids) if each != ids[0]]
        assert sorted(entries[::2]) == [("start", each) for each in ids[1:]], key
        assert [each for _, each in entries[::2]] == [each for _, each in entries[1::2]], key
    scene.settled()


def test_after_a_new_connection_a_cancelled_holder_leaves_its_key_to_the_next(
    own_valkey: RedisServer, fleet: WorkerFleet, tmp_path: Path
) -> None:
    """A holder that was claimed but never given to its process would keep the key for ever."""
    scene = RedisScene(own_valkey, fleet, tmp_path)
    scene.worker()
    scene.send("before", gated=False)
    scene.ledger.wait("end", "before")
    own_valkey.kill()
    own_valkey.wait()
    own_valkey.start()
    scene.client = own_valkey.client(scene.setup.database)
    for holder, waits in (("a1", "a2"), ("a3", "a4")):
        scene.send(holder)
        scene.ledger.wait("start", holder, within=30)
        scene.send(waits, gated=False)
        scene.parked(1)
        scene.app.control.broadcast("lease_cancel", {"task_id": [holder]})
        scene.ledger.wait("end", waits)
        assert scene.app.AsyncResult(holder).state == states.REVOKED
        scene.settled()


def test_an_expired_task_does_not_wait_for_its_key(scene: Scene) -> None:
    """The reaper returns it at its next look, and Celery revokes it."""
    scene.worker()
    scene.send("holder")
    scene.ledger.wait("start", "holder")
    result = scene.send("expired", expires=3)
    scene.parked(1)

    def is_revoked() -> bool:
        scene.due()
        return bool(result.state == "REVOKED")

    eventually(is_revoked, what="its end")
    scene.open("holder")
    scene.ledger.wait("end", "holder")
    scene.settled()


def test_people_see_and_purge_who_waits(scene: Scene) -> None:
    """By the broker's record, without a worker's answer."""
    scene.worker()
    scene.send("holder")
    scene.ledger.wait("start", "holder")
    scene.send("parked")
    scene.send("late")
    scene.parked(2)
    (use,) = json.loads(run(scene, "--json"))["keys"]
    assert (use["key"], use["limit"]) == ("k:a", 1)
    assert [each["task_id"] for each in use["holders"]] == ["holder"]
    assert [each["task_id"] for each in use["parked"]] == ["parked", "late"]
    assert "keyed.work[holder]" in run(scene)
    assert "2 messages deleted" in run(scene, "purge", "k:a", "--force")
    scene.open("holder")
    scene.ledger.wait("end", "holder")
    scene.settled()


def test_who_waits_is_a_row_of_status_and_of_the_page(scene: Scene, tmp_path: Path) -> None:
    """With its key and its position; for ``explain`` and its page only its own line is read."""
    scene.worker()
    for key in ("a", "b"):
        scene.send(f"{key}1", key)
        scene.ledger.wait("start", f"{key}1")
    for count, task_id in enumerate(("a2", "a3", "b2"), start=1):
        scene.send(task_id, task_id[0])
        scene.parked(count)
    shell = Shell(scene.app)
    document = _json(shell("status", "--json", "-t", "2"))
    assert {row["id"] for row in document["leases"]} == {"a1", "b1"}
    assert {_where(row) for row in document["parked_messages"]} == ROWS
    assert (document["parked"], document["more_parked"]) == ({"celery": 3}, 0)
    parked = f"2 leases{scene.workers}\n3 messages parked, waiting for an exclusive key"
    assert "position 2 for key k:a" in shell.until(parked, "status", "-t", "2")
    uses = {use["key"]: use for use in json.loads(run(scene, "--json"))["keys"]}
    parked = _json(shell("explain", "--json", "a3", "-t", "1"))["parked"]
    assert (parked["use"], parked["position"]) == (uses["k:a"], 2)
    assert _json(shell("explain", "--json", "a1", "-t", "1"))["parked"] is None
    with PageServer(scene.setup, KEYED.module, tmp_path) as server:
        server.start().wait_up()

        def board() -> Any:
            return json.loads(server.get("/board.json?state=parked"))

        eventually(lambda: {_where(row) for row in board()["parked_messages"]} == ROWS, 30)
        assert board()["leases"] == []
        assert b"position 2 for key k:a" in server.get("/?state=parked")
        assert json.loads(server.get("/task.json?id=a3"))["parked"] == parked
        assert json.loads(server.get("/task.json?id=a1"))["parked"] is None


ROWS = {("parked", "a2", "k:a", 1), ("parked", "a3", "k:a", 2), ("parked", "b2", "k:b", 1)}


def _json(output: str) -> Any:
    """Parse a document, without what a command may say of workers that cannot be asked."""
    return json.loads(output[output.index("{") :])


def _where(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["state"], row["id"], row["key"], row["position"]


def test_ten_thousand_parked_messages_are_counted_and_the_first_are_read(
    redis_scene: RedisScene,
) -> None:
    """What a collector is sent does not grow with them."""
    scene = redis_scene
    scene.worker()
    scene.send("holder")
    scene.ledger.wait("start", "holder")
    scene.send("parked")
    scene.parked(1)
    _multiply(scene.client, 10_000)
    collector = Collector()
    with sources(scene.app) as found:
        before = _sent(scene.client)
        collector.collect(found, time.monotonic, timeout=1)
        assert _sent(scene.client) - before < 400_000
    view = collector.view(time.monotonic())
    assert [row.id for row in view.rows] == ["holder"]
    assert [row.position for row in view.parked] == list(range(1, LISTED + 1))
    assert (view.parked_count, view.more_parked) == (10_001, 10_001 - LISTED)
    shell = Shell(scene.app)
    assert f"and {10_001 - LISTED} more parked messages" in shell("status", "-t", "1")
    explained = _json(shell("explain", "--json", "parked", "-t", "1"))
    assert len(explained["parked"]["use"]["parked"]) == 10_001


def _multiply(client: Any, count: int) -> None:
    """Park copies of the message that is parked for key a, behind it."""
    (tag,) = [each for each in client.hkeys("unacked") if each.endswith(b"~")]
    text, record = client.hget("unacked", tag), client.hget("unacked.claims", tag)
    score = client.zscore("unacked.leases", tag)
    (place,) = [each.split()[0] for each in client.zrange("unacked.parked.k:a", 0, -1)]
    with client.pipeline(transaction=False) as calls:
        for number in range(1, count + 1):
            copy, own = f"copy-{number}~", b"%s%016d" % (place[:6], int(place[6:]) + number)
            for key in ("unacked.leases", "unacked_index"):
                calls.zadd(key, {copy: score})
            calls.hset("unacked.claims", copy, record.replace(place, own))
            calls.hset("unacked", copy, text.replace(place, own))
            calls.zadd("unacked.parked.k:a", {own + b" " + copy.encode(): 0})
        calls.hincrby("unacked.parked", "celery", count)
        calls.execute()


def _sent(client: Any) -> int:
    """Return how many bytes the server has sent."""
    return int(client.info("stats")["total_net_output_bytes"])


def run(scene: Scene, *arguments: str) -> str:
    """Run ``celery lease keys`` for the scene's app."""
    holder: Any = type("CLIContext", (), {"app": scene.app})()
    result = CliRunner().invoke(exclusive_keys, list(arguments), obj=holder)
    assert result.exit_code == 0, result.output
    return str(result.output)


def test_without_workers_that_know_keys_the_parked_come_back(scene: Scene) -> None:
    """After a rollback to plain Celery: by the visibility timeout, and with no worker of ours."""
    first = scene.worker()
    scene.send("holder")
    scene.ledger.wait("start", "holder")
    scene.send("parked")
    scene.parked(1)
    first.kill_group()
    assert scene.waiting() >= 1
