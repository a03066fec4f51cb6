"""Redis: what a whole worker does with foreign texts and with a server that refuses."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from harness.brokers import RedisServer
from harness.setup import Setup
from harness.waiting import always, eventually
from harness.workers import WorkerOptions

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from harness.workers import WorkerFleet

LEASED = WorkerOptions(module="harness.app_redis_lease")
TASK = "leased.beating"


@pytest.mark.compat
def test_a_worker_outlives_everything_that_is_no_task_of_its(
    redis_server: RedisServer, fleet: WorkerFleet, tmp_path: Path
) -> None:
    """What is no message is set aside with a line, what is no task is Celery's; the rest runs."""
    setup = Setup(redis_server.fresh_url())
    client = redis_server.client(setup.database)
    worker = fleet.start(setup, LEASED)
    (tmp_path / "gate").touch()
    bodies: list[Any] = [[], {}, "text", [1, 2, 3], [[], {}, {}]]
    properties = {"delivery_tag": "t", "delivery_info": {"exchange": "", "routing_key": "celery"}}
    foreign = [
        {
            "body": json.dumps(body),
            "content-type": "application/json",
            "content-encoding": "utf-8",
            "headers": headers,
            "properties": properties,
        }
        for body in bodies
        for headers in (None, {}, {"task": "no.such", "id": "x"})
    ]
    texts = [b"not json", b"\xff\xfe", b"[]", b"{}", json.dumps({"properties": {}}).encode()]
    client.lpush("celery", *texts, *(json.dumps(each) for each in foreign))
    setup.app().send_task(TASK, [str(tmp_path / "gate")], task_id="good")
    fleet.ledger.wait("end", "good", within=12)
    assert worker.returncode is None
    assert client.lrange("celery.malformed", 0, -1) == texts[::-1]
    assert worker.log.count("moved to 'celery.malformed'") == len(texts)
    assert "Traceback" not in _own_lines(worker.log)
    eventually(lambda: client.hlen("unacked") == 0, what="nothing is left unacknowledged")


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent"])
def test_a_lease_that_a_call_made_short_is_kept_while_it_waits(
    redis_server: RedisServer, fleet: WorkerFleet, tmp_path: Path, pool: str
) -> None:
    """Breaks when the main loop gives signs of life as seldom as the tasks' own leases allow."""
    setup = Setup(redis_server.fresh_url())
    worker = fleet.start(setup, replace(LEASED, pool=pool))
    app, gate, open_gate = setup.app(), tmp_path / "gate", tmp_path / "open"
    open_gate.touch()
    app.send_task(TASK, [str(gate)], task_id="long")
    fleet.ledger.wait("start", "long")
    short = {"lease": {"lease_extension": 0.6}}
    app.send_task(TASK, [str(open_gate)], task_id="short", headers=short)
    worker.wait_log("Task leased.beating[short] received")
    assert always(lambda: "lost" not in worker.log, during=3, every=0.1)
    gate.touch()
    fleet.ledger.wait("end", "short")
    (start,) = fleet.ledger.entries("start", "short")
    assert start.facts["deliveries"] == 1


@pytest.mark.compat
def test_a_malformed_message_of_a_leased_task_is_a_dead_letter_and_does_not_end_the_worker(
    redis_server: RedisServer, fleet: WorkerFleet, tmp_path: Path
) -> None:
    """Whatever of it has another form than Celery expects; the task behind it runs."""
    setup = Setup(redis_server.fresh_url())
    client = redis_server.client(setup.database)
    worker = fleet.start(setup, LEASED)
    (tmp_path / "gate").touch()
    headers = {"task": TASK, "id": "bad", "lang": "py"}
    body = [[], {}, {}]
    malformed: list[tuple[Any, dict[str, Any]]] = [
        ([], headers),
        (None, headers),
        (body, {**headers, "id": ["bad"]}),
        (body, {"task": TASK}),
        (body, {**headers, "timelimit": ["soon", "later"]}),
        ({"task": TASK, "id": [], "args": [], "kwargs": {}}, {}),
    ]
    with setup.app().connection_for_write() as connection:
        for text, head in malformed:
            connection.Producer().publish(text, routing_key="celery", headers=head)
    setup.app().send_task(TASK, [str(tmp_path / "gate")], task_id="good")
    eventually(lambda: fleet.ledger.count("end", "good") or worker.returncode is not None)
    assert worker.returncode is None
    assert client.llen("celery.dead") == len(malformed)
    assert worker.log.count("message is not a task's, moved to queue celery.dead") == len(malformed)
    eventually(lambda: client.hlen("unacked") == 0, what="nothing is left unacknowledged")


def _own_lines(log: str) -> str:
    return "\n".join(line for line in log.splitlines() if "celery_lease" in line)


@pytest.fixture(params=["valkey_path", "redis_path"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RedisServer]:
    """A server of this test alone, of both kinds."""
    with RedisServer(request.getfixturevalue(request.param), tmp_path / "server").start() as server:
        yield server


@pytest.mark.compat
def test_a_worker_lives_through_a_full_and_a_read_only_server(
    server: RedisServer, fleet: WorkerFleet, tmp_path: Path
) -> None:
    """No task is lost, lost to another, or run twice; it goes on as soon as the server does."""
    setup, client = Setup(server.url()), server.client()
    gates = {name: tmp_path / name for name in ("first", "second")}
    worker = fleet.start(setup, LEASED)
    app = setup.app()
    for name, gate in gates.items():
        app.send_task(TASK, [str(gate)], task_id=name)
    fleet.ledger.wait("start", "first")

    client.set("ballast", "x" * 2_000_000)
    client.config_set("maxmemory", 1_000_000)
    gates["first"].touch()  # acknowledged, and the second taken, while the server is full
    fleet.ledger.wait("start", "second", within=30)
    assert worker.returncode is None
    client.config_set("maxmemory", 0)
    client.delete("ballast")

    client.replicaof("127.0.0.1", "1")
    worker.wait_log("not answered")
    client.replicaof("NO", "ONE")
    gates["second"].touch()
    fleet.ledger.wait("end", "second", within=30)
    assert worker.returncode is None
    assert [fleet.ledger.count("start", name) for name in gates] == [1, 1]
    eventually(lambda: client.hlen("unacked") == client.llen("celery") == 0, within=30)


@pytest.mark.compat
def test_a_worker_that_starts_at_a_replica_does_as_without_a_server(
    redis_path: str, fleet: WorkerFleet, tmp_path: Path
) -> None:
    """By ``broker_connection_retry_on_startup``: it waits until that is a master, or leaves."""
    with RedisServer(redis_path, tmp_path / "server").start() as server:
        setup, client = Setup(server.url()), server.client()
        client.replicaof("127.0.0.1", "1")
        waits = fleet.launch(setup, LEASED)
        leaves = fleet.launch(setup.having(broker_connection_retry_on_startup=False), LEASED)
        assert leaves.wait(30) == 1
        assert "broker_connection_retry_on_startup=False" in leaves.log
        waits.wait_log("refused for now: You can't write against a read only replica")
        client.replicaof("NO", "ONE")
        waits.wait_ready()
        (tmp_path / "gate").touch()
        setup.app().send_task(TASK, [str(tmp_path / "gate")], task_id="t")
        fleet.ledger.wait("end", "t", within=12)
        assert "Traceback" not in waits.log
