"""Checkpoints on real servers, saved by real workers that are killed, paused and retried."""

from __future__ import annotations

import uuid
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import celery
import pytest
import redis
from kombu.utils.encoding import bytes_to_str

from celery_lease.brokers.checkpoints import FENCE_KEPT, LEAST_KEPT
from celery_lease.task.checkpoints import Checkpoints, CheckpointUnavailable, Superseded
from celery_lease.task.checkpoints.looking import look
from celery_lease.task.checkpoints.stores import find
from harness.kept import Kept, PgmqKept, RedisKept
from harness.places import PGMQ
from harness.setup import Setup
from harness.waiting import eventually
from harness.workers import WorkerOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery_lease.task.checkpoints.stores import Store
    from harness.brokers import RedisServer, SentinelSet
    from harness.workers import WorkerFleet

OPTIONS = WorkerOptions(module="harness.app_checkpoints")
LEASE = {"lease_extension": 4, "lease_reaper_interval": 1}
KINDS = ("backend", "broker")
#: One place of each kind of store.
WAYS = ("backend valkey", *PGMQ)


def task_of(setup: Setup) -> Any:
    """Return a leased task of a setup, in this process."""
    from celery_lease import LeasedTask

    def nothing() -> None: ...

    return setup.app().task(base=LeasedTask, name="t")(nothing)


class Place(NamedTuple):
    """A setup, and a look at the checkpoints that it keeps."""

    setup: Setup
    kept: Kept


def place_at(name: str, request: pytest.FixtureRequest) -> Place:
    """Return a new place: ``backend`` or ``broker`` with the fixture of its server, or ``pgmq``."""
    if name == "pgmq":
        database = request.getfixturevalue("postgres").fresh_database()
        setup = database.setup(queue_name_prefix="app1:")
        return Place(setup, PgmqKept(database))
    kind, server = name.split(" ")
    url = request.getfixturevalue(server).fresh_url()
    options = {"global_keyprefix": "app1:"}
    if kind == "broker":
        return Place(Setup(url).having(broker_transport_options=options), RedisKept(url))
    backend = Setup("memory://", backend=url)
    return Place(backend.having(result_backend_transport_options=options), RedisKept(url))


def text_of(loaded: tuple[bool, str | bytes | None]) -> tuple[bool, str]:
    """Return what a store has loaded; Redis returns bytes."""
    held, text = loaded
    return held, bytes_to_str(text)


# The script on both servers and in both places, and pgmq's statements.


@pytest.fixture(
    params=[
        *(f"{kind} {server}" for server in ("valkey", "redis_server") for kind in KINDS),
        *PGMQ,
    ]
)
def place(request: pytest.FixtureRequest) -> Place:
    """Each place that compares and writes in one step."""
    return place_at(request.param, request)


@pytest.fixture
def run(place: Place) -> Callable[[int], Checkpoints]:
    """Make one run's access to the checkpoint of the task "id"."""
    task = task_of(place.setup)
    return lambda token: Checkpoints("id", task="t", token=token, find=lambda: find(task, "id"))


@pytest.mark.compat
def test_a_state_lives_from_run_to_run_until_success(
    run: Callable[[int], Checkpoints], place: Place
) -> None:
    """It is stored under the prefix, with an expiry, and only its fence is left after success."""
    token = 1_700_000_000_000_000  # microseconds, as the Redis driver's tokens are
    assert run(token).restored() is None
    run(token).save({"at": "тест"})
    (key,) = place.kept.names()
    seen = look(place.setup.app(), "id")
    assert seen is not None
    assert (seen.value, seen.token) == ({"at": "тест"}, token)
    assert look(place.setup.app(), "another") is None
    assert place.kept.names() == [key]
    assert key.startswith("app1:")
    assert LEAST_KEPT - 100 < place.kept.seconds(key) <= LEAST_KEPT
    run(token + 1).save({"at": 2})
    last = run(token + 2)
    assert last.restored() == {"at": 2}
    last.forget()
    assert run(token + 3).restored() is None
    run(token + 3).forget()
    assert place.kept.fields(key) == ["token"]
    assert 0 < place.kept.seconds(key) <= FENCE_KEPT


@pytest.mark.compat
def test_whoever_was_before_the_last_reader_is_refused(run: Callable[[int], Checkpoints]) -> None:
    """Saving, reading, removing: each needs the largest token that was ever here."""
    token = 1_700_000_000_000_000
    loser = run(token)
    loser.save("old")
    reader = run(token + 1)
    assert reader.restored() == "old"
    for act in (lambda: loser.save("late"), run(token).restored):
        with pytest.raises(Superseded):
            act()
    loser.forget()
    loser.retire()
    reader.save("new")
    assert run(token + 1).restored() == "new"
    reader.forget()
    with pytest.raises(Superseded):
        loser.save("after the success")


def test_two_runs_that_save_at_once_end_with_the_later_ones_state(
    run: Callable[[int], Checkpoints],
) -> None:
    """Compared and written in one step: no interleaving lets the older state stay."""
    import threading

    newer = run(2)

    def save_all(checkpoints: Checkpoints, what: str) -> None:
        for number in range(200):
            try:
                checkpoints.save(f"{what} {number}")
            except Superseded:
                return

    older = threading.Thread(target=save_all, args=(run(1), "older"))
    older.start()
    save_all(newer, "newer")
    older.join()
    assert newer.restored() == "newer 199"


@pytest.mark.parametrize(
    ("name", "conf"),
    [
        ("backend valkey", {"result_expires": 50}),
        ("backend valkey", {"result_failure_expires": 50}),
        ("broker valkey", {"result_expires": 50}),
        *((name, {"result_expires": 50}) for name in PGMQ),
    ],
)
def test_a_failed_tasks_state_expires_with_its_result(
    request: pytest.FixtureRequest, name: str, conf: dict[str, int]
) -> None:
    """A short expiry does not end a state that may still be needed, only a failed task's."""
    if "result_failure_expires" in conf and celery.VERSION < (5, 7):
        pytest.xfail("a setting of celery 5.7")
    setup, kept = place_at(name, request)
    store: Store = find(task_of(setup.having(**conf)), "id")
    store.save("id", 1, "text")
    (key,) = kept.names()
    assert kept.seconds(key) > 50
    store.retire("id", 1)
    assert 0 < kept.seconds(key) <= 50


@pytest.mark.parametrize("name", WAYS)
def test_results_that_never_expire_keep_their_checkpoints(
    request: pytest.FixtureRequest, name: str
) -> None:
    """result_expires = 0 is Celery's word for never."""
    setup, kept = place_at(name, request)
    store = find(task_of(setup.having(result_expires=0)), "id")
    store.save("id", 1, "text")
    (key,) = kept.names()
    assert kept.seconds(key) == -1


@pytest.fixture(params=["own_valkey", *PGMQ])
def own_server(request: pytest.FixtureRequest) -> Iterator[tuple[Setup, Any]]:
    """A setup on a server of its own that may end."""
    if request.param == "own_valkey":
        server = request.getfixturevalue("own_valkey")
        yield Setup("memory://", server.url()), server
        return
    programs = request.getfixturevalue("postgres_programs")
    from harness.postgres import PostgresServer

    with PostgresServer(programs).create() as postgres:
        yield postgres.fresh_database().setup(), postgres


def test_a_server_that_came_back_is_reached_again(own_server: tuple[Setup, Any]) -> None:
    """While it is away the error is clear; the next checkpoint needs no new store."""
    setup, server = own_server
    checkpoints = Checkpoints("id", token=1, find=lambda: find(task_of(setup), "id"))
    checkpoints.save("before")
    end(server)
    server.start()
    checkpoints.save("after a restart that nobody saw")
    end(server)
    with pytest.raises(
        CheckpointUnavailable, match=r"(RedisBackend|the pgmq broker) did not take the request"
    ):
        checkpoints.save("lost")
    server.start()
    assert checkpoints.restored() == "after a restart that nobody saw"


def end(server: Any) -> None:
    """End a server; PostgreSQL with all its processes."""
    if hasattr(server, "stop_now"):
        server.stop_now()
    else:
        server.kill()
        server.wait()


@pytest.mark.parametrize("name", WAYS)
def test_a_connection_that_breaks_during_a_call_is_replaced(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Saving twice is saving once, so it is tried again before the task is told."""
    store: Any = find(task_of(place_at(name, request).setup), "id")
    if name == "pgmq":
        import psycopg

        call, lost, late = "_execute", psycopg.OperationalError, psycopg.OperationalError
        replica: type[Exception] = psycopg.errors.ReadOnlySqlTransaction
        store.save("id", 1, "")  # creates the table
    else:
        call, lost, late = "_script", redis.ConnectionError, redis.TimeoutError
        replica = redis.ReadOnlyError
    works, breaks = getattr(store, call), [lost("reset"), late("late")]

    def flaky(*args: Any, **kwargs: Any) -> Any:
        if len(breaks) % 2 == 0:
            raise breaks.pop()
        return works(*args, **kwargs)

    monkeypatch.setattr(store, call, flaky)
    assert store.save("id", 1, "text")
    breaks.append(replica("a replica by now"))
    assert text_of(store.load("id", 1)) == (True, "text")
    assert len(breaks) == 1


@pytest.mark.parametrize("name", ["unix_server", "tls_server"])
def test_the_backends_own_way_to_its_server_is_taken(
    request: pytest.FixtureRequest, name: str
) -> None:
    """Sockets and certificates are those of the result backend."""
    server: RedisServer = request.getfixturevalue(name)
    task = task_of(Setup("memory://", server.fresh_url()))
    find(task, "id").save("id", 1, "text")
    assert find(task, "id").load("id", 1) == (True, b"text")


def saves(store: Store, text: str) -> bool:
    """Tell whether a store takes a text now; sentinels name the old master for a moment."""
    try:
        return store.save("id", 1, text)
    except redis.ConnectionError:
        return False


@pytest.mark.chaos
def test_a_failover_is_followed(sentinel_set: SentinelSet) -> None:
    """The sentinel is asked again once the old master is gone."""
    options = sentinel_set.transport_options
    setup = Setup("memory://", sentinel_set.fresh_url())
    store = find(task_of(setup.having(result_backend_transport_options=options)), "id")
    store.save("id", 1, "before")
    sentinel_set.failover()
    eventually(lambda: saves(store, "after"), 20, what="save at the new master")
    assert store.load("id", 1) == (True, b"after")


@pytest.mark.parametrize("name", WAYS)
def test_threads_share_one_store(request: pytest.FixtureRequest, name: str) -> None:
    """Celery makes a backend for each thread; connecting as often would be a connection a task."""
    import threading

    task = task_of(place_at(name, request).setup)
    stores = [find(task, "id")]
    thread = threading.Thread(target=lambda: stores.append(find(task, "id")))
    thread.start()
    thread.join()
    assert stores[0] is stores[1]


# Real workers.


def pgmq_place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Return a pgmq broker that keeps checkpoints, as its result backend has no keys and values."""
    database = request.getfixturevalue("postgres").fresh_database()
    setup = replace(database.setup(), backend=f"db+sqlite:///{tmp_path / 'results.sqlite'}")
    return Place(setup.having(worker_enable_remote_control=False, **LEASE), PgmqKept(database))


@pytest.fixture(params=["redis backend", "file backend", "broker", *PGMQ])
def workers_place(request: pytest.FixtureRequest, valkey: RedisServer, tmp_path: Path) -> Place:
    """A broker, and checkpoints in each of four places."""
    if request.param == "pgmq":
        return pgmq_place(request, tmp_path)
    broker = valkey.fresh_url()
    results = tmp_path / "results"
    results.mkdir()
    backends = {"redis backend": broker, "file backend": f"file://{results}", "broker": None}
    return Place(Setup(broker, backends[request.param]).having(**LEASE), RedisKept(broker))


def states_kept(place: Place, task_id: str) -> list[str]:
    """Return where a state is kept for a task."""
    setup, kept = place
    if setup.backend and setup.backend.startswith("file://"):
        return [str(path) for path in Path(setup.backend[7:]).glob(f"*{task_id}.checkpoint")]
    return [key for key in kept.names() if "text" in kept.fields(key)]


@pytest.mark.chaos
def test_after_a_crash_the_next_delivery_resumes_and_its_success_removes_the_state(
    workers_place: Place, fleet: WorkerFleet
) -> None:
    """No item is done twice, though the process was killed after the third of five."""
    fleet.start(workers_place.setup, OPTIONS)
    task_id = str(uuid.uuid4())
    workers_place.setup.app().send_task("checkpoints.items", (5, 3), task_id=task_id)
    fleet.ledger.wait("end", task_id, within=40)
    assert [entry.facts["done"] for entry in fleet.ledger.entries("start", task_id)] == [0, 3]
    done = [entry.facts["number"] for entry in fleet.ledger.entries("item", task_id)]
    assert done == [0, 1, 2, 3, 4]
    eventually(lambda: not states_kept(workers_place, task_id), what="removal of the state")


@pytest.fixture(params=["redis", *PGMQ])
def fenced_place(request: pytest.FixtureRequest, valkey: RedisServer, tmp_path: Path) -> Place:
    """A broker with results, and checkpoints that are fenced in one step."""
    if request.param == "pgmq":
        return pgmq_place(request, tmp_path)
    url = valkey.fresh_url()
    return Place(Setup(url, url).having(**LEASE), RedisKept(url))


def test_a_retry_restores_and_a_failure_keeps_the_state_until_its_result_expires(
    fenced_place: Place, fleet: WorkerFleet
) -> None:
    """The task id is the same in every try, and a failed task may be sent again."""
    setup = fenced_place.setup.having(result_expires=500)
    fleet.start(setup, OPTIONS)
    result = setup.app().send_task("checkpoints.failing")
    with pytest.raises(ValueError, match="failed for good"):
        result.get(timeout=30)
    tries = [entry.facts["restored"] for entry in fleet.ledger.entries("try", result.id)]
    assert tries == [None, {"tries": 1}]
    (key,) = states_kept(fenced_place, result.id)
    eventually(lambda: 0 < fenced_place.kept.seconds(key) <= 500, what="expiry with the result")


@pytest.mark.chaos
def test_a_paused_losers_late_checkpoint_is_refused_and_the_holders_stays(
    fenced_place: Place, fleet: WorkerFleet, tmp_path: Path
) -> None:
    """The whole first worker stands still past its lease, and wakes while the second one works."""
    gate, setup = tmp_path / "gate", fenced_place.setup
    first = fleet.start(setup, OPTIONS)
    result = setup.app().send_task("checkpoints.holders", (str(gate),))
    fleet.ledger.wait("saved", result.id)
    second = fleet.start(setup, OPTIONS)
    first.stop_group()
    fleet.ledger.wait("saved", result.id, count=2, within=40)
    assert (
        fleet.ledger.entries("start", result.id)[1].facts["restored"] == f"{first.hostname} early"
    )
    Path(f"{gate}.{first.hostname}").touch()
    first.cont_group()
    late = fleet.ledger.wait("saved late", result.id)
    assert [entry.worker for entry in late] == [first.hostname]
    (key,) = states_kept(fenced_place, result.id)
    assert f'"{second.hostname} early"' in fenced_place.kept.text(key)
    Path(f"{gate}.{second.hostname}").touch()
    Path(f"{gate}.end").touch()
    assert result.get(timeout=30) == second.hostname
    eventually(lambda: not states_kept(fenced_place, result.id), what="removal of the state")
