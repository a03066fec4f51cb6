"""Checkpoints on real servers, saved by real workers that are killed, paused and retried."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import celery
import pytest
import redis

from celery_lease.brokers.redis.checkpoint import FENCE_KEPT, LEAST_KEPT
from celery_lease.task.checkpoints import Checkpoints, CheckpointUnavailable, Superseded
from celery_lease.task.checkpoints.looking import look
from celery_lease.task.checkpoints.stores import find
from harness.setup import Setup
from harness.waiting import eventually
from harness.workers import WorkerOptions

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_lease.task.checkpoints.stores import Store
    from harness.brokers import RedisServer, SentinelSet
    from harness.workers import WorkerFleet

OPTIONS = WorkerOptions(module="harness.app_checkpoints")
LEASE = {"lease_extension": 4, "lease_reaper_interval": 1}


def task_of(setup: Setup) -> Any:
    """Return a leased task of a setup, in this process."""
    from celery_lease import LeasedTask

    def nothing() -> None: ...

    return setup.app().task(base=LeasedTask, name="t")(nothing)


def client_of(url: str) -> redis.Redis:
    """Return a client of the database that a setup's broker or backend names."""
    return redis.Redis.from_url(url, decode_responses=True, socket_timeout=5)


def checkpoint_keys(url: str) -> list[str]:
    """Return the keys of checkpoints in a database, fences included."""
    with client_of(url) as client:
        return [key for key in client.scan_iter() if ".checkpoint" in key]


# The script, on both servers and in both places.


@pytest.fixture
def server(both_servers: RedisServer) -> RedisServer:
    """Each kind of server."""
    return both_servers


@pytest.fixture(params=["backend", "broker"])
def place(request: pytest.FixtureRequest, server: RedisServer) -> Setup:
    """A setup that keeps checkpoints at its result backend, or at its broker for lack of one."""
    url = server.fresh_url()
    options = {"global_keyprefix": "app1:"}
    if request.param == "broker":
        return Setup(url).having(broker_transport_options=options)
    backend = Setup("memory://", backend=url)
    return backend.having(result_backend_transport_options=options)


def url_of(place: Setup) -> str:
    """Return the URL of the database that a place keeps checkpoints in."""
    return place.backend or place.broker


@pytest.fixture
def run(place: Setup) -> Callable[[int], Checkpoints]:
    """Make one run's access to the checkpoint of the task "id"."""
    task = task_of(place)
    return lambda token: Checkpoints("id", task="t", token=token, find=lambda: find(task, "id"))


@pytest.mark.compat
def test_a_state_lives_from_run_to_run_until_success(
    run: Callable[[int], Checkpoints], place: Setup
) -> None:
    """It is stored under the prefix, with an expiry, and only its fence is left after success."""
    token = 1_700_000_000_000_000  # microseconds, as the Redis driver's tokens are
    assert run(token).restored() is None
    run(token).save({"at": "тест"})
    (key,) = checkpoint_keys(url_of(place))
    seen = look(place.app(), "id")
    assert seen is not None
    assert (seen.value, seen.token) == ({"at": "тест"}, token)
    assert look(place.app(), "another") is None
    assert checkpoint_keys(url_of(place)) == [key]
    assert key.startswith("app1:")
    with client_of(url_of(place)) as client:
        assert LEAST_KEPT - 100 < client.ttl(key) <= LEAST_KEPT
    run(token + 1).save({"at": 2})
    last = run(token + 2)
    assert last.restored() == {"at": 2}
    last.forget()
    assert run(token + 3).restored() is None
    run(token + 3).forget()
    with client_of(url_of(place)) as client:
        assert client.hkeys(key) == ["token"]
        assert 0 < client.ttl(key) <= FENCE_KEPT


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


@pytest.mark.parametrize("conf", [{"result_expires": 50}, {"result_failure_expires": 50}])
def test_a_failed_tasks_state_expires_with_its_result(
    valkey: RedisServer, conf: dict[str, int]
) -> None:
    """A short expiry does not end a state that may still be needed, only a failed task's."""
    if "result_failure_expires" in conf and celery.VERSION < (5, 7):
        pytest.xfail("a setting of celery 5.7")
    url = valkey.fresh_url()
    store: Store = find(task_of(Setup("memory://", url).having(**conf)), "id")
    store.save("id", 1, "text")
    (key,) = checkpoint_keys(url)
    with client_of(url) as client:
        assert client.ttl(key) > 50
        store.retire("id", 1)
        assert 0 < client.ttl(key) <= 50


def test_results_that_never_expire_keep_their_checkpoints(valkey: RedisServer) -> None:
    """result_expires = 0 is Celery's word for never."""
    url = valkey.fresh_url()
    store = find(task_of(Setup("memory://", url).having(result_expires=0)), "id")
    store.save("id", 1, "text")
    (key,) = checkpoint_keys(url)
    with client_of(url) as client:
        assert client.ttl(key) == -1


def test_a_server_that_came_back_is_reached_again(own_valkey: RedisServer) -> None:
    """While it is away the error is clear; the next checkpoint needs no new store."""
    setup = Setup("memory://", own_valkey.url())
    checkpoints = Checkpoints("id", token=1, find=lambda: find(task_of(setup), "id"))
    checkpoints.save("before")
    own_valkey.restart()
    checkpoints.save("after a restart that nobody saw")
    own_valkey.kill()
    own_valkey.wait()
    with pytest.raises(CheckpointUnavailable, match="RedisBackend did not take the request"):
        checkpoints.save("lost")
    own_valkey.start()
    assert checkpoints.restored() == "after a restart that nobody saw"


def test_a_connection_that_breaks_during_a_call_is_replaced(
    valkey: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Saving twice is saving once, so it is tried again before the task is told."""
    store: Any = find(task_of(Setup("memory://", valkey.fresh_url())), "id")
    script, breaks = store._script, [redis.ConnectionError("reset"), redis.TimeoutError("late")]

    def flaky(**call: Any) -> Any:
        if len(breaks) % 2 == 0:
            raise breaks.pop()
        return script(**call)

    monkeypatch.setattr(store, "_script", flaky)
    assert store.save("id", 1, "text")
    breaks.append(redis.ReadOnlyError("a replica by now"))
    assert store.load("id", 1) == (True, b"text")
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


def test_threads_share_one_store(valkey: RedisServer) -> None:
    """Celery makes a backend for each thread; connecting as often would be a connection a task."""
    import threading

    task = task_of(Setup("memory://", valkey.fresh_url()))
    stores = [find(task, "id")]
    thread = threading.Thread(target=lambda: stores.append(find(task, "id")))
    thread.start()
    thread.join()
    assert stores[0] is stores[1]


# Real workers.


@pytest.fixture(params=["redis backend", "file backend", "broker"])
def setup(request: pytest.FixtureRequest, valkey: RedisServer, tmp_path: Path) -> Setup:
    """A Redis broker, and checkpoints in each of three places."""
    broker = valkey.fresh_url()
    results = tmp_path / "results"
    results.mkdir()
    backends = {"redis backend": broker, "file backend": f"file://{results}", "broker": None}
    return Setup(broker, backends[request.param]).having(**LEASE)


def states_kept(setup: Setup, task_id: str) -> list[str]:
    """Return where a state is kept for a task."""
    if setup.backend and setup.backend.startswith("file://"):
        return [str(path) for path in Path(setup.backend[7:]).glob(f"*{task_id}.checkpoint")]
    with client_of(setup.broker) as client:
        return [key for key in checkpoint_keys(setup.broker) if client.hexists(key, "text")]


@pytest.mark.chaos
def test_after_a_crash_the_next_delivery_resumes_and_its_success_removes_the_state(
    setup: Setup, fleet: WorkerFleet
) -> None:
    """No item is done twice, though the process was killed after the third of five."""
    fleet.start(setup, OPTIONS)
    task_id = str(uuid.uuid4())
    setup.app().send_task("checkpoints.items", (5, 3), task_id=task_id)
    fleet.ledger.wait("end", task_id, within=40)
    assert [entry.facts["done"] for entry in fleet.ledger.entries("start", task_id)] == [0, 3]
    done = [entry.facts["number"] for entry in fleet.ledger.entries("item", task_id)]
    assert done == [0, 1, 2, 3, 4]
    eventually(lambda: not states_kept(setup, task_id), what="removal of the state")


@pytest.fixture
def redis_setup(valkey: RedisServer) -> Setup:
    """Broker and results in one database."""
    url = valkey.fresh_url()
    return Setup(url, url).having(**LEASE)


def test_a_retry_restores_and_a_failure_keeps_the_state_until_its_result_expires(
    redis_setup: Setup, fleet: WorkerFleet
) -> None:
    """The task id is the same in every try, and a failed task may be sent again."""
    setup = redis_setup.having(result_expires=500)
    fleet.start(setup, OPTIONS)
    result = setup.app().send_task("checkpoints.failing")
    with pytest.raises(ValueError, match="failed for good"):
        result.get(timeout=30)
    tries = [entry.facts["restored"] for entry in fleet.ledger.entries("try", result.id)]
    assert tries == [None, {"tries": 1}]
    (key,) = states_kept(setup, result.id)
    with client_of(setup.broker) as client:
        eventually(lambda: 0 < client.ttl(key) <= 500, what="expiry with the result")


@pytest.mark.chaos
def test_a_paused_losers_late_checkpoint_is_refused_and_the_holders_stays(
    redis_setup: Setup, fleet: WorkerFleet, tmp_path: Path
) -> None:
    """The whole first worker stands still past its lease, and wakes while the second one works."""
    gate = tmp_path / "gate"
    first = fleet.start(redis_setup, OPTIONS)
    result = redis_setup.app().send_task("checkpoints.holders", (str(gate),))
    fleet.ledger.wait("saved", result.id)
    second = fleet.start(redis_setup, OPTIONS)
    first.stop_group()
    fleet.ledger.wait("saved", result.id, count=2, within=40)
    assert (
        fleet.ledger.entries("start", result.id)[1].facts["restored"] == f"{first.hostname} early"
    )
    Path(f"{gate}.{first.hostname}").touch()
    first.cont_group()
    late = fleet.ledger.wait("saved late", result.id)
    assert [entry.worker for entry in late] == [first.hostname]
    (key,) = states_kept(redis_setup, result.id)
    with client_of(redis_setup.broker) as client:
        assert f'"{second.hostname} early"' in str(client.hget(key, "text"))
    Path(f"{gate}.{second.hostname}").touch()
    Path(f"{gate}.end").touch()
    assert result.get(timeout=30) == second.hostname
    eventually(lambda: not states_kept(redis_setup, result.id), what="removal of the state")
