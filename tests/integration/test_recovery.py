"""Whatever is killed, paused or disconnected: nothing is lost, and nothing is settled twice.

The scenarios share nothing but two processors, so they all run at the same time and each test
reads its own. Leases last 3 s.
"""

from __future__ import annotations

import os
import signal
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from harness.brokers import RedisServer
from harness.ledger import now
from harness.relay_stage import EXTENSION, RelayStage
from harness.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(300), pytest.mark.long]

TAKEN_OVER = [("end", 2), ("lost", 1), ("start", 1), ("start", 2)]
ONCE = [("start", 1), ("end", 1)]


def kill_child(stage: RelayStage) -> Any:
    """Kill one of two task processes."""
    killed, other = (stage.send("beats", 2 * EXTENSION) for _ in range(2))
    stage.start("prefork", 2)
    stage.wait("start", other)
    os.kill(stage.wait("start", killed).pid, signal.SIGKILL)
    stage.ledger.wait("start", killed, count=2)
    losses = stage.claims()[killed]["losses"]
    stage.wait("end", killed)
    stage.wait("end", other)
    stage.wait_settled()
    return stage.runs(killed), stage.runs(other), losses


def kill_main(stage: RelayStage) -> Any:
    """Kill a worker's main process in the middle of a task."""
    workers = [stage.start(), stage.start()]
    task_id = stage.send("beats", 2 * EXTENSION)
    start = stage.wait("start", task_id)
    first = next(worker for worker in workers if start.pid in worker.children())
    first.kill()
    killed_at = now()
    first.wait()
    eventually(lambda: not psutil.pid_exists(start.pid), what="end of the task process")
    child_for = now() - killed_at
    again = stage.ledger.wait("start", task_id, count=2)[1]
    stage.wait("end", task_id)
    stage.wait_settled()
    return stage.runs(task_id), child_for, again.at - killed_at


def pause_worker(stage: RelayStage) -> Any:
    """Stop a whole worker for longer than its lease, then let it go on."""
    task_id = stage.send("beats", 2 * EXTENSION)
    first = stage.start()
    stage.wait("start", task_id)
    first.stop_group()
    stage.start()
    stage.ledger.wait("start", task_id, count=2)
    first.cont_group()
    stage.wait("lost", task_id)
    stage.wait("end", task_id)
    stage.wait_settled()
    return stage.runs(task_id)


def pause_broker_shortly(stage: RelayStage) -> Any:
    """Let the broker be silent for less than a lease, twice."""
    task_id = stage.send("beats", 3 * EXTENSION)
    stage.start()
    stage.wait("start", task_id)
    for _ in range(2):
        stage.broker.client_pause(int(EXTENSION * 1000 * 0.4))
        stage.broker.ping()
    stage.wait("end", task_id, within=30)
    stage.wait_settled()
    return stage.runs(task_id)


def pause_broker_long(stage: RelayStage) -> Any:
    """Let the broker be silent for longer than a lease."""
    task_id = stage.send("beats", 3 * EXTENSION)
    stage.start()
    stage.wait("start", task_id)
    stage.broker.client_pause(int(EXTENSION * 1000 * 1.7))
    stage.wait("end", task_id, within=60)
    stage.wait_settled(20)
    return stage.runs(task_id)


def cut_connections(stage: RelayStage) -> Any:
    """Cut every connection to the broker while one task runs and others wait."""
    running = stage.send("beats", 2 * EXTENSION)
    waiting = stage.send_many(3, "short")
    stage.start()
    stage.wait("start", running)
    eventually(lambda: stage.held() == 4)
    stage.broker.client_kill_filter(_type="normal", skipme=True)
    for task_id in (running, *waiting):
        stage.wait("end", task_id, within=40)
    stage.wait_settled()
    return stage.runs(running), [stage.runs(task_id)[1:] for task_id in waiting]


def cut_before_a_start_is_read(stage: RelayStage) -> Any:
    """Cut every connection when a task has begun, and its worker's main process has not read it."""
    worker = stage.start()
    child = stage.wait("start", stage.send("short")).pid
    stage.wait_settled()
    os.kill(child, signal.SIGSTOP)
    running = stage.send("beats", 0.5)
    eventually(lambda: stage.held() == 1)
    with stage.setup.app() as app:
        # It writes to its process one turn of its loop after it took the task. Each answer is of a
        # later turn; the third one comes after the write.
        for _ in range(3):
            assert app.control.ping(timeout=10, limit=1)
    worker.stop()
    stage.broker.client_kill_filter(_type="normal", skipme=True)
    os.kill(child, signal.SIGCONT)
    stage.wait("start", running)
    worker.cont()
    stage.wait("end", running, within=40)
    stage.wait_settled()
    return stage.runs(running)


def recycle_children(stage: RelayStage) -> Any:
    """Fork a new process for each of 200 tasks, while the keeper extends two others' leases."""
    kept = stage.send_many(2, "beats", 3 * EXTENSION)
    many = stage.send_many(200, "short")
    stage.start("prefork", 4, "--max-tasks-per-child", "1")
    for task_id in (*kept, *many):
        stage.wait("end", task_id, within=240)
    stage.wait_settled()
    return [stage.runs(task_id) for task_id in (*kept, *many)]


def scale(stage: RelayStage) -> Any:
    """Let the pool grow to four processes and shrink again while one task runs on."""
    long = stage.send("beats", 4 * EXTENSION)
    short = stage.send_many(5, "beats", 1.0)
    worker = stage.start("prefork", 1, "--autoscale=4,1", AUTOSCALE_KEEPALIVE="1")
    eventually(lambda: len(worker.children()) == 4, 30, what="four processes")
    for task_id in short:
        stage.wait("end", task_id, within=30)
    eventually(lambda: len(worker.children()) < 4, 30, what="fewer processes")
    stage.wait("end", long, within=30)
    stage.wait_settled()
    return [stage.runs(task_id) for task_id in (long, *short)]


def restart_pool(stage: RelayStage) -> Any:
    """Restart the pool by remote control in the middle of a task."""
    task_id = stage.send("beats", 2 * EXTENSION)
    worker = stage.start()
    stage.wait("start", task_id)
    with stage.setup.app() as app:
        (reply,) = app.control.broadcast(
            "pool_restart", arguments={"reload": False}, reply=True, timeout=10, limit=1
        )
    after = stage.send("short")
    stage.wait("end", after, within=40)
    stage.wait("end", task_id, within=40)
    stage.wait_settled()
    return stage.runs(task_id), stage.runs(after), reply[worker.hostname]


SHARED: dict[str, Callable[[RelayStage], Any]] = {
    "recycle": recycle_children,  # takes longest
    "kill child": kill_child,
    "kill main": kill_main,
    "pause worker": pause_worker,
    "scale": scale,
    "restart": restart_pool,
}
#: These do something to the whole server, so each has one of its own.
ALONE: dict[str, Callable[[RelayStage], Any]] = {
    "short pause": pause_broker_shortly,
    "long pause": pause_broker_long,
    "cut": cut_connections,
    "cut unread": cut_before_a_start_is_read,
}
CONF = {"restart": {"worker_pool_restarts": True}}


class Scenarios:
    """All scenarios, begun at once."""

    def __init__(self, server: RedisServer, binary: str, root: Path) -> None:
        self.stages: list[RelayStage] = []
        self.servers: list[RedisServer] = []
        self.threads = ThreadPoolExecutor(8)
        self.results: dict[str, Future[Any]] = {}
        for name, play in {**SHARED, **ALONE}.items():
            directory = root / name.replace(" ", "-")
            own = name in ALONE
            if own:
                self.servers.append(RedisServer(binary, directory / "server").start())
            stage = RelayStage(self.servers[-1] if own else server, directory, **CONF.get(name, {}))
            self.stages.append(stage)
            self.results[name] = self.threads.submit(play, stage)

    def __getitem__(self, name: str) -> Any:
        return self.results[name].result()

    def close(self) -> None:
        self.threads.shutdown(cancel_futures=True)
        for each in (*self.stages, *self.servers):
            each.close()


@pytest.fixture(scope="module")
def scenarios(
    valkey: RedisServer, valkey_path: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Scenarios]:
    """Everything under way."""
    running = Scenarios(valkey, valkey_path, tmp_path_factory.mktemp("recovery"))
    yield running
    running.close()


def test_of_a_killed_task_process_only_its_own_message_comes_back(scenarios: Scenarios) -> None:
    """I5: it comes back at once and counts as a loss; the other task runs on."""
    killed, other, losses = scenarios["kill child"]
    assert killed == [("start", 1), ("start", 2), ("end", 2)]
    assert other == ONCE
    assert losses == 1


def test_a_killed_worker_s_task_is_taken_over_and_its_process_is_gone(
    scenarios: Scenarios,
) -> None:
    """I5: extension, sweep and a second, on a busy machine; the orphan does not work on."""
    events, child_for, taken_over = scenarios["kill main"]
    assert events == [("start", 1), ("start", 2), ("end", 2)]
    assert child_for < EXTENSION
    assert taken_over < EXTENSION + EXTENSION / 3 + 4


def test_a_paused_worker_s_task_is_told_at_its_first_beat_afterwards(scenarios: Scenarios) -> None:
    """I1, I3, I4: the new holder runs and acknowledges; the old one neither."""
    assert sorted(scenarios["pause worker"]) == TAKEN_OVER


def test_a_silent_broker_loses_nothing_within_a_lease(scenarios: Scenarios) -> None:
    """An error is no loss."""
    assert scenarios["short pause"] == ONCE


def test_a_broker_silent_for_a_lease_makes_its_task_run_once_more(scenarios: Scenarios) -> None:
    """I3, I4: told at the deadline, run again, and settled once."""
    assert sorted(scenarios["long pause"]) == TAKEN_OVER


def test_a_lost_connection_leaves_what_runs_alone(scenarios: Scenarios) -> None:
    """The task runs once and its acknowledgement counts; what waited comes again, and runs."""
    running, waiting = scenarios["cut"]
    assert running == ONCE
    assert [[event for event, _ in events] for events in waiting] == [["end"]] * 3


def test_a_lost_connection_leaves_what_has_just_begun_alone(scenarios: Scenarios) -> None:
    """Celery forgets a task whose start it has not read; it ran again, beside the first run."""
    assert scenarios["cut unread"] == ONCE


def test_a_pool_that_grows_and_shrinks_runs_every_task_once(scenarios: Scenarios) -> None:
    """A lease follows its task, not the pool's size."""
    assert scenarios["scale"] == [ONCE] * 6


def test_a_restarted_pool_loses_no_task(scenarios: Scenarios) -> None:
    """What ran is run again, and the new pool works."""
    running, after, reply = scenarios["restart"]
    assert reply == {"ok": "reload started"}
    assert running[-1][0] == "end"
    assert [event for event, _ in running].count("end") == 1
    assert after == ONCE


def test_forks_under_load_neither_hang_nor_lose_a_task(scenarios: Scenarios) -> None:
    """200 children born while the keeper works: every task runs once."""
    assert scenarios["recycle"] == [ONCE] * 202
