"""I2, I5: a result backend that is away while tasks end costs time, and neither results nor work.

Backends are away for three leases. Brokers are others, and stay.
"""

from __future__ import annotations

import json
import re
import signal
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import pytest
from celery import chord
from kombu import Connection

from harness.at_once import Stages, at_once
from harness.brokers import RedisServer
from harness.ledger import now
from harness.postgres import PostgresServer
from harness.setup import Setup
from harness.stage import RedisStage
from harness.waiting import eventually
from harness.workers import WorkerFleet

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from harness.processes import LocalProcess
    from harness.shell import Commands

pytestmark = pytest.mark.long

EXTENSION = 4.0
AWAY = 3 * EXTENSION
WAIT = 60.0
WARNING = "the result backend does not store that"

#: How a task ends, and the state that is stored.
ENDS = {"return": "SUCCESS", "raise": "FAILURE", "retry": "SUCCESS"}


class Storing(RedisStage):
    """A broker that stays, and a result backend of its own."""

    program = "spans"
    conf: ClassVar[dict[str, Any]] = {"lease_extension": EXTENSION}
    backend: RedisServer
    commands: Commands

    @property
    def gate(self) -> Path:
        """What the tasks wait for."""
        return self.fleet.directory / "gate"

    def with_results(self, url: str) -> Self:
        """Have results stored at another place."""
        self.setup = replace(self.setup, backend=url)
        self.app = self.setup.app()
        return self

    def begin(self, gate: Path, *hows: str) -> dict[str, str]:
        """Send a task for each end, and return their ids once all run."""
        ids = {how: self.send("gated", str(gate), how) for how in hows}
        for task_id in ids.values():
            self.ledger.wait("start", task_id, within=WAIT)
        return ids

    def ended(self, gate: Path, ids: dict[str, str]) -> None:
        """Let all come to their end."""
        gate.touch()
        for task_id in ids.values():
            self.ledger.wait("end", task_id)

    def states(self) -> list[str]:
        """Return what ``celery lease status`` says of each lease."""
        said = self.commands.run(self.app, "status", "--json", "-t", "3").output
        rows = json.loads(said)["leases"]
        return ["storing result" if row["storing"] else row["state"] for row in rows]

    def runs(self, task_id: str) -> list[int]:
        """Return the deliveries of a task's runs."""
        return [each.facts["deliveries"] for each in self.ledger.entries("start", task_id)]

    def send(self, task: str, *args: Any, **options: Any) -> str:
        """Send a task by an app that keeps no results.

        What Celery returns otherwise tells the backend when it is collected: maybe one that is away
        by then, in some other test.
        """
        app = replace(self.setup, backend=None).app("sender")
        with app:
            return str(app.send_task(f"{self.program}.{task}", args, **options).id)

    def state(self, task_id: str) -> str:
        """Return what the backend says of a task."""
        return str(self.app.backend.get_state(task_id))


@pytest.fixture(scope="module")
def stages(
    valkey: RedisServer, valkey_path: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stages[Storing]]:
    """Results on a server of their own, which may be killed; what it has stored survives."""
    options = {"appendonly": "yes", "appendfsync": "always"}

    @contextmanager
    def make(stages: Stages[Storing], directory: Path) -> Iterator[Storing]:
        fleet = WorkerFleet(directory)
        with RedisServer(valkey_path, directory / "valkey", options).start() as backend:
            try:
                stage = Storing(Setup(valkey.fresh_url()), valkey, fleet)
                stage.backend, stage.commands = backend, stages.commands
                yield stage.with_results(backend.url(1))
            finally:
                fleet.close()

    with Stages(tmp_path_factory, make) as stages:
        yield stages


def away(server: LocalProcess, seconds: float = AWAY) -> None:
    """Let a server be away for so long, from now on; the test has looked at what it wanted."""
    gone_at = now()
    eventually(lambda: now() - gone_at >= seconds, seconds + 5, what="the backend was away")
    server.start()


def down(server: LocalProcess) -> None:
    server.kill()
    server.wait()


@pytest.mark.compat
@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent", "eventlet"])
@at_once
def test_results_wait_for_a_backend_that_is_away(stage: Storing, pool: str) -> None:
    """Three leases long: each task has run once, its outcome is stored, and one line said why."""
    worker, gate = stage.worker(pool, 4), stage.gate
    ids = stage.begin(gate, *ENDS)
    down(stage.backend)
    stage.ended(gate, ids)
    # That of the retry, too: the run that it asked for has ended by then.
    eventually(lambda: stage.states() == ["storing result"] * 3, what="status says so")
    away(stage.backend)
    for how, task_id in ids.items():
        eventually(lambda: stage.state(task_id) == ENDS[how], WAIT, what=f"{how}: stored")  # noqa: B023
        assert stage.runs(task_id) == [1] * (2 if how == "retry" else 1)
    eventually(stage.is_clean, what="all are acknowledged")
    for task_id in ids.values():
        assert len(re.findall(rf"{task_id}\] has ended, but {WARNING}", worker.log)) == 1
    assert "lease of task" not in worker.log


@at_once
def test_a_solo_worker_waits_for_its_backend(stage: Storing) -> None:
    """Its main loop stands still meanwhile."""
    worker, gate = stage.worker("solo"), stage.gate
    ids = stage.begin(gate, "return")
    down(stage.backend)
    stage.ended(gate, ids)
    worker.wait_log(WARNING)
    away(stage.backend)
    eventually(lambda: stage.state(ids["return"]) == "SUCCESS", WAIT)
    assert stage.runs(ids["return"]) == [1]
    eventually(stage.is_clean, what="it is acknowledged")


@at_once
def test_a_backend_that_celery_asks_again_for_ever_costs_no_second_run(stage: Storing) -> None:
    """``result_backend_always_retry``: the loop is Celery's, the lease lives on."""
    worker, gate = stage.having(result_backend_always_retry=True).worker(), stage.gate
    ids = stage.begin(gate, "return")
    down(stage.backend)
    stage.ended(gate, ids)
    worker.wait_log(WARNING)
    away(stage.backend)
    eventually(lambda: stage.state(ids["return"]) == "SUCCESS", WAIT)
    assert stage.runs(ids["return"]) == [1]
    assert worker.log.count(WARNING) == 1


@pytest.fixture
def stage(stages: Stages[Storing], tmp_path: Path) -> Iterator[Storing]:
    """Return a stage for a test with a server of its own."""
    with stages.open(tmp_path) as stage:
        yield stage


@pytest.fixture
def database(postgres_programs: Path) -> Iterator[PostgresServer]:
    """A database server that may be stopped; what it has stored survives."""
    with PostgresServer(postgres_programs).create() as server:
        yield server


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_results_wait_for_a_database(stage: Storing, database: PostgresServer, pool: str) -> None:
    """SQLAlchemy's errors are others, and Celery gives up after three of them."""
    stage = stage.with_results("db+" + database.dsn().replace("://", "+psycopg://"))
    worker, gate = stage.worker(pool, 3), stage.gate
    ids = stage.begin(gate, "return", "raise")
    database.stop_now()
    stage.ended(gate, ids)
    worker.wait_log(WARNING)
    away(database)
    for how, task_id in ids.items():
        eventually(lambda: stage.state(task_id) == ENDS[how], WAIT, what=f"{how}: stored")  # noqa: B023
        assert stage.runs(task_id) == [1]
    eventually(stage.is_clean, what="all are acknowledged")


@at_once
def test_results_wait_for_the_server_that_carries_them(stage: Storing) -> None:
    """RPC: results are messages, to a server that is another than the one tasks come from."""
    broker, written = stage.setup.broker, {"broker_write_url": stage.backend.url(1)}
    stage = stage.with_results("rpc://").having(broker_read_url=broker, **written)
    stage.worker()
    client, gate = stage.setup.app("client"), stage.gate
    with client, Connection(broker) as connection:
        result = client.send_task("spans.gated", (str(gate),), connection=connection)
        stage.ledger.wait("start", result.id, within=WAIT)
        down(stage.backend)
        stage.ended(gate, {"return": result.id})
        away(stage.backend)
        assert result.get(timeout=WAIT) == "done"
    assert stage.runs(result.id) == [1]
    eventually(stage.is_clean, what="it is acknowledged")


@at_once
def test_a_chord_waits_for_its_backend(stage: Storing) -> None:
    """Its parts are counted there, after the last one's result was stored."""
    stage.worker("prefork", 3)
    gate = stage.gate
    header = [stage.app.signature("spans.gated", (str(gate),)) for _ in range(2)]
    body = stage.app.signature("spans.total", queue="celery")
    with stage.app:
        # Called when a result is collected, then maybe while the backend is away.
        stage.app.backend.remove_pending_result = lambda result: result
        done = chord(header, app=stage.app)(body).id
        stage.ledger.wait("start", count=2, within=WAIT)
        down(stage.backend)
        gate.touch()
        stage.ledger.wait("end", count=2)
        away(stage.backend)
        eventually(lambda: stage.state(done) == "SUCCESS", WAIT, what="the body has run")
    assert stage.ledger.count("start") == 2
    assert stage.ledger.count("total") == 1


@pytest.mark.parametrize("pool", ["prefork", "threads"])
@pytest.mark.parametrize("always", [False, True])
@at_once
def test_at_the_longest_duration_work_is_done_once_more(
    stage: Storing, pool: str, *, always: bool
) -> None:
    """I5: what cannot be stored until then goes back, as a loss that says why."""
    stage.having(lease_max_duration=8, result_backend_always_retry=always)
    worker, gate = stage.worker(pool), stage.gate
    (task_id,) = stage.begin(gate, "return").values()
    down(stage.backend)
    stage.ended(gate, {"return": task_id})
    worker.wait_log(f"lease of task spans.gated[{task_id}] lost (its result could not be stored)")
    stage.backend.start()
    eventually(lambda: stage.state(task_id) == "SUCCESS", WAIT, what="it is stored")
    assert stage.runs(task_id) == [1, 2]
    eventually(stage.is_clean, what="it is acknowledged")


@pytest.mark.parametrize("how", ["warm", "soft", "cold"])
@pytest.mark.parametrize("pool", ["prefork", "threads"])
@at_once
def test_a_worker_that_stops_gives_back_what_it_could_not_store(
    stage: Storing, pool: str, how: str
) -> None:
    """I5: in time, as a loss, for a worker whose backend answers."""
    stage.having(lease_shutdown_timeout=2, worker_soft_shutdown_timeout=2 if how == "soft" else 0)
    worker, gate = stage.worker(pool), stage.gate
    (task_id,) = stage.begin(gate, "return").values()
    down(stage.backend)
    stage.ended(gate, {"return": task_id})
    worker.wait_log(WARNING)
    worker.send(signal.SIGTERM if how == "warm" else signal.SIGQUIT)
    worker.wait(WAIT)
    assert "(its result could not be stored)" in worker.log
    stage.backend.start()
    stage.worker(pool)
    eventually(lambda: stage.state(task_id) == "SUCCESS", WAIT, what="it is stored")
    assert stage.runs(task_id) == [1, 2]


@at_once
def test_a_worker_that_stops_waits_for_the_backend_as_for_a_task(stage: Storing) -> None:
    """Also for an interruptible one: it has nothing to hand over any more."""
    stage.having(lease_extension=30, lease_shutdown_timeout=25)
    worker, gate = stage.worker(), stage.gate
    task_id = stage.send("interruptible", str(gate))
    stage.ledger.wait("start", task_id, within=WAIT)
    down(stage.backend)
    stage.ended(gate, {"return": task_id})
    worker.wait_log(WARNING)
    worker.term()
    away(stage.backend, 4)
    assert worker.wait(WAIT) == 0
    assert stage.state(task_id) == "SUCCESS"
    assert (stage.runs(task_id), stage.is_clean()) == ([1], True)


@pytest.mark.parametrize("limit", ["soft_time_limit", "time_limit"])
@at_once
def test_time_limits_end_what_cannot_be_stored(stage: Storing, limit: str) -> None:
    """As they end everything else of a task; its message goes back."""
    worker, gate = stage.worker(), stage.gate
    task_id = stage.send("gated", str(gate), **{limit: 8})
    stage.ledger.wait("start", task_id, within=WAIT)
    down(stage.backend)
    stage.ended(gate, {"return": task_id})
    worker.wait_log("(its result could not be stored)", WAIT)
    stage.backend.start()
    eventually(lambda: stage.state(task_id) == "SUCCESS", WAIT, what="it is stored")
    assert stage.runs(task_id) == [1, 2]


@at_once
def test_a_result_that_no_backend_takes_is_stored_as_a_failure(stage: Storing) -> None:
    """It is not tried again: the next try would say the same."""
    stage.worker()
    task_id = stage.send("unstorable")
    eventually(lambda: stage.state(task_id) == "FAILURE", WAIT)
    eventually(stage.is_clean, what="it is acknowledged")
    assert stage.runs(task_id) == [1]
