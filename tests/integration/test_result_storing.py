"""I2, I5: a result backend that is away while tasks end costs time, and neither results nor work.

Backends are away for three leases. Brokers are others, and stay.
"""

from __future__ import annotations

import gc
import json
import re
import signal
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import pytest
from celery import chord
from kombu import Connection

from harness.ledger import now
from harness.postgres import PostgresServer
from harness.shell import Shell
from harness.stage import RedisStage
from harness.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from harness.brokers import RedisServer
    from harness.processes import LocalProcess
    from harness.setup import Setup
    from harness.workers import WorkerFleet

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
        rows = json.loads(Shell(self.app)("status", "--json", "-t", "3"))["leases"]
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


@pytest.fixture
def backend(own_valkey: RedisServer) -> RedisServer:
    """A result backend that may be killed; what it has stored survives."""
    return own_valkey


@pytest.fixture
def stage(setup: Setup, valkey: RedisServer, fleet: WorkerFleet, backend: RedisServer) -> Storing:
    """Results on a server of their own."""
    return Storing(setup, valkey, fleet).with_results(backend.url(1))


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
def test_results_wait_for_a_backend_that_is_away(
    stage: Storing, backend: RedisServer, tmp_path: Path, pool: str
) -> None:
    """Three leases long: each task has run once, its outcome is stored, and one line said why."""
    worker, gate = stage.worker(pool, 4), tmp_path / "gate"
    ids = stage.begin(gate, *ENDS)
    down(backend)
    stage.ended(gate, ids)
    # That of the retry, too: the run that it asked for has ended by then.
    eventually(lambda: stage.states() == ["storing result"] * 3, what="status says so")
    away(backend)
    for how, task_id in ids.items():
        eventually(lambda: stage.state(task_id) == ENDS[how], WAIT, what=f"{how}: stored")  # noqa: B023
        assert stage.runs(task_id) == [1] * (2 if how == "retry" else 1)
    eventually(stage.is_clean, what="all are acknowledged")
    for task_id in ids.values():
        assert len(re.findall(rf"{task_id}\] has ended, but {WARNING}", worker.log)) == 1
    assert "lease of task" not in worker.log


def test_a_solo_worker_waits_for_its_backend(
    stage: Storing, backend: RedisServer, tmp_path: Path
) -> None:
    """Its main loop stands still meanwhile."""
    worker, gate = stage.worker("solo"), tmp_path / "gate"
    ids = stage.begin(gate, "return")
    down(backend)
    stage.ended(gate, ids)
    worker.wait_log(WARNING)
    away(backend)
    eventually(lambda: stage.state(ids["return"]) == "SUCCESS", WAIT)
    assert stage.runs(ids["return"]) == [1]
    eventually(stage.is_clean, what="it is acknowledged")


def test_a_backend_that_celery_asks_again_for_ever_costs_no_second_run(
    stage: Storing, backend: RedisServer, tmp_path: Path
) -> None:
    """``result_backend_always_retry``: the loop is Celery's, the lease lives on."""
    worker, gate = stage.having(result_backend_always_retry=True).worker(), tmp_path / "gate"
    ids = stage.begin(gate, "return")
    down(backend)
    stage.ended(gate, ids)
    worker.wait_log(WARNING)
    away(backend)
    eventually(lambda: stage.state(ids["return"]) == "SUCCESS", WAIT)
    assert stage.runs(ids["return"]) == [1]
    assert worker.log.count(WARNING) == 1


@pytest.fixture
def database(postgres_programs: Path) -> Iterator[PostgresServer]:
    """A database server that may be stopped; what it has stored survives."""
    with PostgresServer(postgres_programs).create() as server:
        yield server


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_results_wait_for_a_database(
    stage: Storing, database: PostgresServer, tmp_path: Path, pool: str
) -> None:
    """SQLAlchemy's errors are others, and Celery gives up after three of them."""
    stage = stage.with_results("db+" + database.dsn().replace("://", "+psycopg://"))
    worker, gate = stage.worker(pool, 3), tmp_path / "gate"
    ids = stage.begin(gate, "return", "raise")
    database.stop_now()
    stage.ended(gate, ids)
    worker.wait_log(WARNING)
    away(database)
    for how, task_id in ids.items():
        eventually(lambda: stage.state(task_id) == ENDS[how], WAIT, what=f"{how}: stored")  # noqa: B023
        assert stage.runs(task_id) == [1]
    eventually(stage.is_clean, what="all are acknowledged")


def test_results_wait_for_the_server_that_carries_them(
    stage: Storing, backend: RedisServer, tmp_path: Path
) -> None:
    """RPC: results are messages, to a server that is another than the one tasks come from."""
    broker, written = stage.setup.broker, {"broker_write_url": backend.url(1)}
    stage = stage.with_results("rpc://").having(broker_read_url=broker, **written)
    stage.worker()
    client, gate = stage.setup.app("client"), tmp_path / "gate"
    with client, Connection(broker) as connection:
        result = client.send_task("spans.gated", (str(gate),), connection=connection)
        stage.ledger.wait("start", result.id, within=WAIT)
        down(backend)
        stage.ended(gate, {"return": result.id})
        away(backend)
        assert result.get(timeout=WAIT) == "done"
    assert stage.runs(result.id) == [1]
    eventually(stage.is_clean, what="it is acknowledged")


def test_a_chord_waits_for_its_backend(
    stage: Storing, backend: RedisServer, tmp_path: Path
) -> None:
    """Its parts are counted there, after the last one's result was stored."""
    stage.worker("prefork", 3)
    gate = tmp_path / "gate"
    header = [stage.app.signature("spans.gated", (str(gate),)) for _ in range(2)]
    body = stage.app.signature("spans.total", queue="celery")
    with stage.app:
        done = chord(header, app=stage.app)(body).id
        gc.collect()  # the results that it made, while their backend is there
        stage.ledger.wait("start", count=2, within=WAIT)
        down(backend)
        gate.touch()
        stage.ledger.wait("end", count=2)
        away(backend)
        eventually(lambda: stage.state(done) == "SUCCESS", WAIT, what="the body has run")
    assert stage.ledger.count("start") == 2
    assert stage.ledger.count("total") == 1


@pytest.mark.parametrize("pool", ["prefork", "threads"])
@pytest.mark.parametrize("always", [False, True])
def test_at_the_longest_duration_work_is_done_once_more(
    stage: Storing, backend: RedisServer, tmp_path: Path, pool: str, *, always: bool
) -> None:
    """I5: what cannot be stored until then goes back, as a loss that says why."""
    stage.having(lease_max_duration=8, result_backend_always_retry=always)
    worker, gate = stage.worker(pool), tmp_path / "gate"
    (task_id,) = stage.begin(gate, "return").values()
    down(backend)
    stage.ended(gate, {"return": task_id})
    worker.wait_log(f"lease of task spans.gated[{task_id}] lost (its result could not be stored)")
    backend.start()
    eventually(lambda: stage.state(task_id) == "SUCCESS", WAIT, what="it is stored")
    assert stage.runs(task_id) == [1, 2]
    eventually(stage.is_clean, what="it is acknowledged")


@pytest.mark.parametrize("how", ["warm", "soft", "cold"])
@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_a_worker_that_stops_gives_back_what_it_could_not_store(
    stage: Storing, backend: RedisServer, tmp_path: Path, pool: str, how: str
) -> None:
    """I5: in time, as a loss, for a worker whose backend answers."""
    stage.having(lease_shutdown_timeout=2, worker_soft_shutdown_timeout=2 if how == "soft" else 0)
    worker, gate = stage.worker(pool), tmp_path / "gate"
    (task_id,) = stage.begin(gate, "return").values()
    down(backend)
    stage.ended(gate, {"return": task_id})
    worker.wait_log(WARNING)
    worker.send(signal.SIGTERM if how == "warm" else signal.SIGQUIT)
    worker.wait(WAIT)
    assert "(its result could not be stored)" in worker.log
    backend.start()
    stage.worker(pool)
    eventually(lambda: stage.state(task_id) == "SUCCESS", WAIT, what="it is stored")
    assert stage.runs(task_id) == [1, 2]


def test_a_worker_that_stops_waits_for_the_backend_as_for_a_task(
    stage: Storing, backend: RedisServer, tmp_path: Path
) -> None:
    """Also for an interruptible one: it has nothing to hand over any more."""
    stage.having(lease_extension=30, lease_shutdown_timeout=25)
    worker, gate = stage.worker(), tmp_path / "gate"
    task_id = stage.send("interruptible", str(gate))
    stage.ledger.wait("start", task_id, within=WAIT)
    down(backend)
    stage.ended(gate, {"return": task_id})
    worker.wait_log(WARNING)
    worker.term()
    away(backend, 4)
    assert worker.wait(WAIT) == 0
    assert stage.state(task_id) == "SUCCESS"
    assert (stage.runs(task_id), stage.is_clean()) == ([1], True)


@pytest.mark.parametrize("limit", ["soft_time_limit", "time_limit"])
def test_time_limits_end_what_cannot_be_stored(
    stage: Storing, backend: RedisServer, tmp_path: Path, limit: str
) -> None:
    """As they end everything else of a task; its message goes back."""
    worker, gate = stage.worker(), tmp_path / "gate"
    task_id = stage.send("gated", str(gate), **{limit: 8})
    stage.ledger.wait("start", task_id, within=WAIT)
    down(backend)
    stage.ended(gate, {"return": task_id})
    worker.wait_log("(its result could not be stored)", WAIT)
    backend.start()
    eventually(lambda: stage.state(task_id) == "SUCCESS", WAIT, what="it is stored")
    assert stage.runs(task_id) == [1, 2]


def test_a_result_that_no_backend_takes_is_stored_as_a_failure(stage: Storing) -> None:
    """It is not tried again: the next try would say the same."""
    stage.worker()
    task_id = stage.send("unstorable")
    eventually(lambda: stage.state(task_id) == "FAILURE", WAIT)
    eventually(stage.is_clean, what="it is acknowledged")
    assert stage.runs(task_id) == [1]
