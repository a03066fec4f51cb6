"""I3, I4: what a former holder returns, raises or sends at its end changes nothing anywhere."""

from __future__ import annotations

import re
import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

import psutil
import pytest
from celery import chord

from harness import ledger
from harness.app_fenced import register
from harness.clients import client
from harness.setup import Setup
from harness.waiting import eventually
from harness.workers import WorkerOptions

if TYPE_CHECKING:
    from pathlib import Path

    from celery import Celery
    from celery.canvas import Signature

    from harness.brokers import RedisServer
    from harness.workers import Worker, WorkerFleet

WAIT = 30.0
#: Stuck processes are left alone here: what they do when they come back is the question. A worker
#: must not fetch messages again while all its places are taken by stuck tasks.
CONF = {"lease_extension": 4, "lease_watchdog_threshold": 3600, "worker_prefetch_multiplier": 1}

LOSERS = [
    ("stall", "return"),
    ("stall", "raise"),
    ("stall", "retry"),
    ("stall", "replace"),
    ("stall", "update_state"),
    ("stall", "beat"),
    ("stall", "swallow"),
    ("stall_auto", "raise"),
    ("stall_auto", "beat"),
    ("stall_auto", "soft"),
    ("stall_on", "beat"),
]
IN_PROCESSES = [*LOSERS, ("stall_hard", "hang")]


def call(app: Celery, name: str, how: str, gate: Path) -> Signature[Any]:
    """Return a call of a stalling task that tells by its callbacks what came of it."""
    mark = f"{name} {how}"
    signature: Signature[Any] = app.tasks[name].s(how, str(gate))
    return signature.on_error(app.signature("errback", (mark,))).set(
        link=[app.signature("linked", (mark,))]
    )


@pytest.mark.compat
@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_loser_changes_nothing_whatever_it_does(
    pool: str, valkey: RedisServer, fleet: WorkerFleet, tmp_path: Path
) -> None:
    """A task stalls, its message is run elsewhere, then the first run ends, in every way.

    Results are the second run's, links ran once, no errback did, the chord's body ran once, nothing
    was retried or replaced. Seen to fail with outcome.may_act() always true.
    """
    url, gate = valkey.fresh_url(), tmp_path / "gate"
    setup = Setup(url, url, CONF)
    losers = IN_PROCESSES if pool == "prefork" else LOSERS
    # One place for each run, over both workers, and some for callbacks.
    options = WorkerOptions(module="harness.app_fenced", pool=pool, concurrency=len(losers) + 4)
    workers = fleet.start_many(2, setup, options)
    with client(setup, register) as app:
        results = {loser: call(app, *loser, gate).apply_async() for loser in losers}
        header = [call(app, "stall", how, gate) for how in ("return", "raise")]
        united = chord(header, app.signature("body")).apply_async()
        runs = len(losers) + len(header)
        seconds = {loser: result.get(timeout=WAIT) for loser, result in results.items()}
        assert united.get(timeout=WAIT) == ["second", "second"]
        gate.touch()
        late = len(LOSERS) + len(header)
        fleet.ledger.wait("late", count=late, within=WAIT)
        eventually(lambda: count(*workers, "is discarded") == late, WAIT)
        eventually(lambda: not_busy(app, *workers), WAIT)
        assert seconds == dict.fromkeys(losers, "second")
        assert {loser: result.state for loser, result in results.items()} == dict.fromkeys(
            losers, "SUCCESS"
        )
        assert {each.result for each in results.values()} == {"second"}
    check_callbacks(fleet, losers, runs)
    settled(valkey, setup)


def check_callbacks(fleet: WorkerFleet, losers: list[tuple[str, str]], runs: int) -> None:
    """Compare what the ledger says with two runs of each task, of which one counts."""
    assert fleet.ledger.count("start") == 2 * runs
    linked = [entry.task_id for entry in fleet.ledger.entries("linked")]
    expected = [f"{name} {how}" for name, how in losers] + ["stall return", "stall raise"]
    assert sorted(linked) == sorted(expected)
    assert fleet.ledger.entries("errback") == []
    assert fleet.ledger.count("body") == 1


def count(*workers_and_text: Any) -> int:
    """Return how often workers wrote a text to their logs."""
    *workers, text = workers_and_text
    return sum(worker.log.count(text) for worker in workers)


def not_busy(app: Celery, *workers: Worker) -> bool:
    """Tell whether all workers have nothing in hand."""
    inspect = app.control.inspect([worker.hostname for worker in workers], timeout=2)
    active, reserved = inspect.active() or {}, inspect.reserved() or {}
    return len(active) == len(workers) and not any([*active.values(), *reserved.values()])


def settled(valkey: RedisServer, setup: Setup) -> None:
    """Wait until the broker knows no message any more."""
    keys = ("unacked", "unacked_index", "unacked.claims", "unacked.leases", "celery")
    with valkey.client(setup.database) as client:
        eventually(lambda: not client.exists(*keys), WAIT, what="all messages settled")


@pytest.mark.compat
def test_a_late_result_that_nobody_took_over_is_confirmed_and_stored(
    valkey: RedisServer, fleet: WorkerFleet, tmp_path: Path
) -> None:
    """The main process stands still, so nothing extends the lease and nobody reaps it.

    The task process asks the broker itself; the work counts and is not done twice.
    """
    url, gate = valkey.fresh_url(), tmp_path / "gate"
    setup = Setup(url, url, CONF)
    worker = fleet.start(setup, WorkerOptions(module="harness.app_fenced"))
    with client(setup, register) as app:
        results = [call(app, "stall", "return", gate).apply_async()]
        (start,) = fleet.ledger.wait("start", within=WAIT)
        worker.stop()
        eventually(lambda: ledger.now() > start.at + 5, WAIT)
        gate.touch()
        assert results[0].get(timeout=WAIT) == "first"
        worker.cont()
        settled(valkey, setup)
        assert [result.get(timeout=WAIT) for result in results] == ["first"]
    assert fleet.ledger.count("start") == 1
    assert fleet.ledger.wait("linked", within=WAIT)[0].facts == {"result": "first"}


def test_a_task_that_keeps_its_lease_costs_no_broker_call_of_its_process(
    valkey: RedisServer, fleet: WorkerFleet, tmp_path: Path
) -> None:
    """I7: with a thousand beats and a result that nobody wants, only the main process talks.

    The control: a task that ends late is seen to ask, by the same means.
    """
    setup = Setup(valkey.fresh_url(), None, CONF)
    worker = fleet.start(setup, WorkerOptions(module="harness.app_fenced"))
    gate = tmp_path / "gate"
    with client(setup, register) as app, Monitor(valkey, worker) as monitor:
        for _ in range(20):
            app.tasks["beating"].delay()
        fleet.ledger.wait("beaten", count=20, within=WAIT)
        settled(valkey, setup)
        assert monitor.by_children() == []
        app.tasks["stall"].delay("return", str(gate))
        (start,) = fleet.ledger.wait("start", within=WAIT)
        worker.stop()
        eventually(lambda: ledger.now() > start.at + 5, WAIT)
        gate.touch()
        eventually(monitor.by_children, WAIT)
        worker.cont()


class Monitor:
    """Notes which of a worker's processes sends commands to the server."""

    def __init__(self, valkey: RedisServer, worker: Worker) -> None:
        self._worker = worker
        self._seen: list[tuple[int, str]] = []
        # The client library's monitor() fails on commands that it cannot take apart.
        self._socket = socket.create_connection(("127.0.0.1", valkey.port))
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        # The server resets a connection that is closed while it still sends.
        with suppress(ConnectionResetError), self._socket.makefile(errors="replace") as lines:
            for line in lines:
                if match := re.match(r"\+\S+ \[\d+ [\d.]+:(\d+)\] \"(\w+)\"", line):
                    self._seen.append((int(match[1]), match[2]))

    def by_children(self) -> list[str]:
        """Return the commands on connections that a task process has for itself."""
        assert self._seen
        main = ports(self._worker.pid)
        theirs = {port for pid in self._worker.children() for port in ports(pid)} - main
        return [command for port, command in self._seen if port in theirs]

    def __enter__(self) -> Self:
        self._socket.sendall(b"MONITOR\r\n")
        assert self._socket.recv(5) == b"+OK\r\n"
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join(10)
        self._socket.close()


def ports(pid: int) -> set[int]:
    """Return the local ports of a process's connections."""
    return {each.laddr.port for each in psutil.Process(pid).net_connections() if each.laddr}
