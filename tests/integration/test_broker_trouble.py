"""Workers on a Redis in trouble: work goes on until its deadline, and nothing is run twice for it.

What a driver answers to each fault is in ``test_redis_faults.py``; short and long silences, and all
connections cut at once, are in ``test_recovery.py``. Here are whole workers. Each scenario has a
server of its own, they all run at the same time, and each test reads its own. Leases last 8 s.
"""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import kombu
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from harness.brokers import RedisServer, SentinelSet
from harness.ledger import now
from harness.relay_stage import RelayStage
from harness.tcp_proxy import TcpProxy
from harness.waiting import eventually

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(300), pytest.mark.long]

LEASE = 8.0
ONCE = [("start", 1), ("end", 1)]
PERSISTENT = {"appendonly": "yes", "appendfsync": "always"}
#: So slow that to load the data takes a second or so, which is answered with -LOADING meanwhile.
SLOW_TO_LOAD = {"key-load-delay": "3000", "aof-use-rdb-preamble": "no"}


class Place:
    """What a scenario is given: a server of its own, made as it asks, and a directory."""

    def __init__(self, binary: str, directory: Path) -> None:
        self.binary, self.directory = binary, directory
        self.ends: list[Callable[[], None]] = []

    def server(self, **options: str) -> RedisServer:
        server = RedisServer(self.binary, self.directory / "server", options).start()
        self.ends.append(server.close)
        return server

    def stage(self, server: RedisServer, **conf: Any) -> RelayStage:
        stage = RelayStage(server, self.directory / "stage", lease_extension=LEASE, **conf)
        self.ends.append(stage.close)
        return stage

    def close(self) -> None:
        for end in reversed(self.ends):
            end()


def works_again(stage: RelayStage) -> list[tuple[str, int]]:
    """Send a task and return what became of it."""
    task_id = stage.send("short")
    stage.wait("end", task_id, within=60)
    return stage.runs(task_id)


def restart_with_data(place: Place) -> Any:
    """Restart a server that keeps its data; one task ends meanwhile, one does not, some wait."""
    server = place.server(**PERSISTENT, **SLOW_TO_LOAD)
    stage = place.stage(server)
    pipe = stage.broker.pipeline()
    for number in range(1500):
        pipe.set(f"ballast-{number}", "x")
    pipe.execute()
    ends, lasts = stage.send("beats", 2.0), stage.send("beats", 2 * LEASE)
    worker = stage.start("prefork", 2)
    for task_id in (ends, lasts):
        stage.wait("start", task_id)
    waits = stage.send("short")
    server.restart()  # in which the first one ends: nobody to tell
    assert stage.ledger.count("end", ends)
    for task_id in (waits, lasts):
        stage.wait("end", task_id, within=60)
    stage.wait_settled(20)
    again = works_again(stage)
    loading = "loading the dataset" in worker.log
    return [stage.runs(each) for each in (ends, lasts)], again, loading, worker.returncode


def restart_empty(place: Place) -> Any:
    """Restart a server that loses its data: also the task that ran is nobody's any more."""
    server = place.server()
    stage = place.stage(server)
    running = stage.send("beats", 2 * LEASE)
    worker = stage.start()
    stage.wait("start", running)
    server.restart()
    stage.wait("lost", running, within=60)
    again = works_again(stage)
    stage.wait_settled(20)
    return stage.runs(running), again, worker.returncode


def kill_one_by_one(place: Place) -> Any:
    """Kill one connection after the other, all the time, while tasks run and others wait."""
    stage = place.stage(place.server())
    tasks = [stage.send("beats", 1.5 * LEASE), *stage.send_many(4, "beats", 1.0)]
    worker = stage.start("prefork", 2)
    stage.wait("start", tasks[0])
    killed = 0
    while not stage.ledger.count("end", tasks[0]):
        for client in stage.broker.client_list(_type="normal"):
            if int(client["id"]) != stage.broker.client_id():
                with contextlib.suppress(redis.ResponseError):
                    killed += stage.broker.client_kill_filter(_id=client["id"]) or 0
                threading.Event().wait(0.3)
    for task_id in tasks:
        stage.wait("end", task_id, within=60)
    stage.wait_settled(20)
    ran = [stage.ledger.count("end", task_id) for task_id in tasks]
    return stage.runs(tasks[0]), ran, killed, worker.returncode


class Strander(TcpProxy):
    """A way to a server whose connections can be left half open: nothing comes, nothing ends."""

    def strand(self) -> int:
        """Drop all that is sent from now on over the connections that there are."""
        count = len(self._stranded_or_open())
        self._dead.update(self._stranded_or_open())
        return count // 2

    def __init__(self, port: int) -> None:
        self._dead: set[socket.socket] = set()
        super().__init__(port)

    def _stranded_or_open(self) -> list[socket.socket]:
        return self._sockets[1:]

    def _pump(self, source: socket.socket, target: socket.socket, held: bool) -> None:  # noqa: ARG002
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if source not in self._dead:
                    target.sendall(data)
        if source not in self._dead:
            self._end(target)


def half_open(place: Place) -> Any:
    """Leave every connection half open in the middle of a task; new ones work."""
    stage = place.stage(place.server())
    with Strander(stage.server.port) as proxy:
        url = f"redis://127.0.0.1:{proxy.port}/{stage.setup.database}"
        options = {"socket_timeout": 5, "health_check_interval": 2}
        stage.setup = replace(stage.setup, broker=url).having(broker_transport_options=options)
        running, ends = stage.send("beats", 2 * LEASE), stage.send("beats", 2.0)
        worker = stage.start("prefork", 2)
        for task_id in (running, ends):
            stage.wait("start", task_id)
        stranded = proxy.strand()
        stage.wait("end", ends)
        stage.wait("end", running, within=60)
        stage.wait_settled(30)
        again = works_again(stage)
        return [stage.runs(running), stage.runs(ends)], again, stranded, worker.returncode


def in_turn(place: Place) -> Any:
    """Let the server refuse work in every way that it has, one after the other."""
    server = place.server()
    stage = place.stage(server)
    worker = stage.start()
    outcomes = {}
    for name, (fault, lift) in faults(server).items():
        task_id = stage.send("beats", 1.0)
        stage.wait("start", task_id, within=60)
        fault()
        stage.wait("end", task_id)
        threading.Event().wait(1.5)  # it lasts a while: calls are made, refused, made again
        lift()
        with contextlib.suppress(AssertionError):
            eventually(lambda: stage.held() == 0, 20)
        outcomes[name] = (stage.runs(task_id), stage.held(), worker.returncode)
    return outcomes, works_again(stage)


def faults(server: RedisServer) -> dict[str, tuple[Callable[[], Any], Callable[[], Any]]]:
    """Return what makes a server refuse, and what makes it work again, by the word it says."""
    ask = server.client().execute_command
    kept = redis.Redis(port=server.port, single_connection_client=True)  # stays logged in
    kept.ping()

    def hang() -> None:
        def run() -> None:
            # Asked once only: a client that times out and asks again would hang the server anew.
            client = redis.Redis(port=server.port, retry=Retry(NoBackoff(), 0), socket_timeout=None)
            with contextlib.suppress(redis.RedisError):
                client.eval("while true do end", 0)

        threading.Thread(target=run, daemon=True).start()

    def kill_script() -> None:
        ask("SCRIPT", "KILL")  # a request: whoever asks in the same instant is told BUSY once more
        eventually(answers, 20)

    def answers() -> bool:
        with contextlib.suppress(redis.ResponseError):
            return bool(ask("PING"))
        return False

    def change_password(word: str) -> None:
        kept.config_set("requirepass", word)
        kept.client_kill_filter(_type="normal", skipme=True)

    ask("CONFIG", "SET", "busy-reply-threshold", "50")
    return {
        "NOSCRIPT": (lambda: ask("SCRIPT", "FLUSH"), lambda: None),
        "OOM": (
            lambda: ask("CONFIG", "SET", "maxmemory", "1"),
            lambda: ask("CONFIG", "SET", "maxmemory", "0"),
        ),
        "READONLY": (
            lambda: ask("REPLICAOF", "127.0.0.1", "1"),
            lambda: ask("REPLICAOF", "NO", "ONE"),
        ),
        "BUSY": (hang, kill_script),
        "WRONGPASS": (lambda: change_password("other"), lambda: change_password("")),
    }


#: The name of the connections for leases, and what comes before it.
NAME, GREETINGS = b"celery-lease", (b"HELLO", b"CLIENT")


class Turnstile(TcpProxy):
    """A way to a server that can be shut: who says its name then is noted, and all are sent off."""

    def __init__(self, port: int) -> None:
        self.shut = False
        self.asked: list[float] = []  # when the leases' connections came and said their name
        super().__init__(port)

    def _pump(self, source: socket.socket, target: socket.socket, held: bool) -> None:
        if not (self.shut and held):
            super()._pump(source, target, held)
            return
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if NAME in data:
                    self.asked.append(now())
                if NAME in data or not any(word in data for word in GREETINGS):
                    break
                target.sendall(data)
        self._end(source)
        self._end(target)


def away(place: Place) -> Any:
    """Let the server be away for 12 s of a lease of a minute that is due for extension."""
    server = place.server()
    conf = {"lease_extension": 60, "lease_interval": 1, "lease_reaper_interval": 50}
    stage = RelayStage(server, place.directory / "stage", **conf)
    place.ends.append(stage.close)
    with Turnstile(server.port) as proxy:
        stage.setup = replace(
            stage.setup, broker=f"redis://127.0.0.1:{proxy.port}/{stage.setup.database}"
        )
        running = stage.send("beats", 12.0)
        stage.start()
        stage.wait("start", running)
        proxy.shut = True
        proxy.cut()
        stage.wait("end", running)
        proxy.shut = False
        stage.wait_settled(20)
        return stage.runs(running), proxy.asked, works_again(stage)


def last_word(place: Place) -> Any:
    """Kill the server; a task ends; the worker is asked to stop; then the server is there again."""
    server = place.server(**PERSISTENT)
    stage = place.stage(server)
    ends = stage.send("beats", 2.0)
    worker = stage.start()
    stage.wait("start", ends)
    server.kill()
    server.wait()
    stage.wait("end", ends)
    worker.term()
    threading.Event().wait(2.0)  # it has noticed by then that nobody answers
    server.start()
    status = worker.wait(30)
    return stage.runs(ends), status, stage.held()


def flush(place: Place) -> Any:
    """Delete everything while a task runs."""
    stage = place.stage(place.server())
    running = stage.send("beats", 2 * LEASE)
    worker = stage.start()
    stage.wait("start", running)
    stage.broker.flushall()
    stage.wait("lost", running, within=60)
    return stage.runs(running), works_again(stage), worker.returncode


def fail_over(place: Place) -> Any:
    """Fail over to a replica that missed the last writes, among them a task from start to end."""
    servers = SentinelSet(place.binary, place.directory / "sentinel")
    place.ends.append(servers.close)
    stage = place.stage(servers.master, broker_transport_options=servers.transport_options)
    stage.setup = replace(stage.setup, broker=servers.fresh_url())
    stage.broker = servers.master.client(stage.setup.database)
    running = stage.send("beats", 2.5 * LEASE)
    worker = stage.start("prefork", 2)
    stage.wait("start", running)
    # In the replica this one waits in its queue, whatever becomes of it.
    servers.master.client().config_set("min-replicas-to-write", "0")
    eventually(lambda: in_step(servers), 10)
    servers.replica.stop()
    missed = stage.send("short")
    stage.wait("end", missed)
    servers.master.kill()
    servers.replica.cont()
    eventually(lambda: servers.sentinel.master_port() == servers.replica.port, 40)
    stage.broker = servers.replica.client(stage.setup.database)
    again = works_again(stage)
    stage.wait("end", running, within=60)
    stage.wait_settled(30)
    return stage.runs(running), again, worker.returncode


def in_step(servers: SentinelSet) -> bool:
    """Whether the replica has everything that its master has."""
    offsets = [
        server.client().info("replication")["master_repl_offset"]
        for server in (servers.master, servers.replica)
    ]
    return offsets[0] == offsets[1]


SCENARIOS: dict[str, Callable[[Place], Any]] = {
    "in turn": in_turn,  # takes longest
    "away": away,
    "fail-over": fail_over,
    "half open": half_open,
    "restart": restart_with_data,
    "empty": restart_empty,
    "one by one": kill_one_by_one,
    "flush": flush,
    "last word": last_word,
}


@pytest.fixture(scope="module")
def outcomes(
    redis_path: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[Any]]]:
    """All scenarios, begun at once."""
    root = tmp_path_factory.mktemp("trouble")
    places = {name: Place(redis_path, root / name.replace(" ", "-")) for name in SCENARIOS}
    threads = ThreadPoolExecutor(4)
    yield {name: threads.submit(play, places[name]) for name, play in SCENARIOS.items()}
    threads.shutdown(cancel_futures=True)
    for place in places.values():
        place.close()


def test_a_restarted_server_is_told_what_ended_meanwhile(outcomes: dict[str, Future[Any]]) -> None:
    """I4, I5: late acknowledged, not run again; the other ran on; also while it loads its data."""
    runs, again, loading, status = outcomes["restart"].result()
    assert runs == [ONCE, ONCE]
    assert again == ONCE
    assert loading
    assert status is None


def test_a_server_that_forgot_everything_ends_its_leases_and_is_used_again(
    outcomes: dict[str, Future[Any]],
) -> None:
    """Nothing else can be done: the message is gone, and the task is told."""
    runs, again, status = outcomes["empty"].result()
    assert runs == [("start", 1), ("lost", 1)]
    assert again == ONCE
    assert status is None


def test_connections_killed_one_by_one_lose_and_double_nothing(
    outcomes: dict[str, Future[Any]],
) -> None:
    """What runs, runs once; what waits may be delivered again, and ends once."""
    runs, ran, killed, status = outcomes["one by one"].result()
    assert killed > 10
    assert runs == ONCE
    assert ran == [1] * 5
    assert status is None


@pytest.mark.skipif(kombu.VERSION < (5, 7), reason="it never leaves the one it consumes over")
def test_half_open_connections_are_left_and_made_anew(outcomes: dict[str, Future[Any]]) -> None:
    """By keeper, acknowledgements and consumer alike; nothing ran twice."""
    runs, again, stranded, status = outcomes["half open"].result()
    assert stranded > 1
    assert runs == [ONCE, ONCE]
    assert again[-1][0] == "end"
    assert status is None


@pytest.mark.parametrize("word", ["NOSCRIPT", "OOM", "READONLY", "BUSY", "WRONGPASS"])
def test_a_server_that_refuses_is_told_later(outcomes: dict[str, Future[Any]], word: str) -> None:
    """A task that ended while the server said this ran once, and is acknowledged afterwards."""
    runs, held, _ = outcomes["in turn"].result()[0][word]
    assert runs == ONCE
    assert held == 0


@pytest.mark.parametrize("word", ["NOSCRIPT", "OOM", "READONLY", "BUSY", "WRONGPASS"])
def test_a_worker_outlives_a_server_that_refuses(
    outcomes: dict[str, Future[Any]], word: str
) -> None:
    """And consumes again afterwards; of a replica that would be the end of any Celery worker."""
    seen, again = outcomes["in turn"].result()
    assert seen[word][2] is None
    assert again == ONCE


def test_a_server_that_is_away_is_asked_ever_less_often(outcomes: dict[str, Future[Any]]) -> None:
    """By leases that can wait for it; the task runs on, and is acknowledged when it is back."""
    runs, asked, again = outcomes["away"].result()
    assert runs == ONCE
    gaps = [later - earlier for earlier, later in pairwise(asked)]
    assert 4 <= len(asked) <= 15
    assert max(gaps[-3:]) > 4 * min(gaps)
    assert again == ONCE


def test_a_worker_that_stops_tells_a_server_that_comes_back_what_ended(
    outcomes: dict[str, Future[Any]],
) -> None:
    """Killed, ended without, asked to stop without, and back in the last moment: not run again."""
    runs, status, held = outcomes["last word"].result()
    assert runs == ONCE
    assert (status, held) == (0, 0)


def test_a_flushed_server_is_used_again(outcomes: dict[str, Future[Any]]) -> None:
    """The task that ran is told at its next beat after the next extension."""
    runs, again, status = outcomes["flush"].result()
    assert runs == [("start", 1), ("lost", 1)]
    assert again == ONCE
    assert status is None


def test_a_fail_over_that_loses_writes_keeps_the_leases_that_arrived(
    outcomes: dict[str, Future[Any]],
) -> None:
    """The claim was replicated, its extensions were not: extended at the new master, run once."""
    runs, again, status = outcomes["fail-over"].result()
    assert runs == ONCE
    assert again == ONCE
    assert status is None
