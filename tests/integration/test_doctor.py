"""``celery lease doctor`` at real servers and workers, healthy and not."""

from __future__ import annotations

import gc
import json
import os
import re
import socket
import subprocess
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from amqp.exceptions import NotFound
from kombu import Producer

from celery_lease.brokers import driver_class
from celery_lease.cli.broker import BrokerAway
from celery_lease.cli.doctor.examine import examine
from celery_lease.cli.doctor.report import facts
from celery_lease.cli.doctor.survey import survey
from harness.app_doctor import register
from harness.brokers import RedisServer
from harness.clients import client
from harness.lease_desk import Bench
from harness.setup import Setup
from harness.waiting import eventually, free_port
from harness.workers import QUIET_PEERS, TESTS, WorkerFleet, WorkerOptions

if TYPE_CHECKING:
    from pathlib import Path

    from harness.postgres import PostgresServer
    from harness.rabbitmq import RabbitServer

MODULE = "harness.app_doctor"
ORDER = ["ok", "notice", "warning", "error"]


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the tasks out that apps of other tests in this process share with all."""
    monkeypatch.setattr("celery._state._on_app_finalizers", set())


def worst(findings: list[dict[str, Any]]) -> dict[str, str]:
    """Return the worst severity of each check."""
    found: dict[str, str] = {}
    for each in findings:
        before = found.get(each["check"], "ok")
        found[each["check"]] = max(before, each["severity"], key=ORDER.index)
    return found


def look(setup: Setup) -> list[dict[str, Any]]:
    """Examine an app of the test's own process and return the findings."""
    with client(setup, register) as app:
        return list(facts(examine(app, 0.3, grace=60.0))["findings"])


def about(findings: list[dict[str, Any]], check: str) -> str:
    """Return all that was said of a check."""
    return "\n".join(
        f"{each['what']} {each['why']} {each['remedy']}"
        for each in findings
        if each["check"] == check
    )


def command(setup: Setup, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``celery -A harness.app_doctor lease doctor`` to its end."""
    path = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        [sys.executable, "-m", "celery", "-A", MODULE, "lease", "doctor", *arguments],
        env={**os.environ, **setup.env(), "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.compat
def test_a_cluster_with_faults_is_told_all_of_them(
    valkey_path: str, tmp_path: Path, fleet: WorkerFleet
) -> None:
    """A server that evicts and forgets, a worker without leases on the same queue with a short
    visibility timeout, and nobody's log shows that somebody looked.
    """
    options = {"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"}
    with RedisServer(valkey_path, tmp_path / "bad", options).start() as server:
        setup = Setup(server.fresh_url()).having(lease_extension=30)
        leased = fleet.launch(setup, WorkerOptions(module=MODULE))
        short = setup.having(broker_transport_options={"visibility_timeout": 60})
        plain = fleet.launch(short, WorkerOptions(module="harness.app"))
        leased.wait_ready(), plain.wait_ready()
        done = command(setup, "--json", "-t", "2", "--grace-period", "15")
        keys = server.client().keys()
        fleet.close()
    assert done.returncode == 1, done.stderr
    findings = json.loads(done.stdout)["findings"]
    assert worst(findings) == {
        "settings.rules": "ok",
        "settings.backend": "notice",
        "tasks.silent": "warning",
        "deploy.grace": "error",
        "broker.reached": "ok",
        "redis.version": "ok",
        "redis.scripts": "ok",
        "redis.permissions": "ok",
        "redis.waiting": "ok",
        "redis.eviction": "error",
        "redis.persistence": "warning",
        "leases.overdue": "ok",
        "leases.dead": "ok",
        "workers.answered": "ok",
        "workers.plain": "warning",
        "tasks.plain": "notice",
        "workers.versions": "ok",
        "workers.visibility_timeout": "warning",
        "workers.clock": "ok",
    }
    assert "doctor.silent" in about(findings, "tasks.silent")
    assert plain.hostname in about(findings, "workers.plain")
    assert f"60 s: {plain.hostname}" in about(findings, "workers.visibility_timeout")
    assert f"{leased.hostname} " in about(findings, "workers.clock")
    assert not any(b"lease" in key for key in keys), "it changes nothing"
    for worker in (leased, plain):
        assert " ERROR" not in worker.log


def test_a_healthy_cluster_gets_good_marks_and_code_zero(
    own_valkey: RedisServer, fleet: WorkerFleet
) -> None:
    """Nothing above a notice but the task that never beats; plain text in a pipe."""
    url = own_valkey.fresh_url()
    setup = Setup(url, backend=url)
    worker = fleet.start(setup, WorkerOptions(module=MODULE))
    done = command(setup, "-t", "2", "--grace-period", "60")
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    assert f"1 worker answered: {worker.hostname}" in done.stdout
    assert done.stdout.strip().splitlines()[-1].startswith("1 warning, ")
    assert command(setup, "-t", "2", "--strict").returncode == 1


def test_an_empty_cluster_is_no_error(setup: Setup) -> None:
    """What can be checked without workers is; how to wait longer is said."""
    findings = look(setup)
    found = worst(findings)
    assert (found["workers.none"], found["redis.version"]) == ("notice", "ok")
    assert "error" not in found.values()
    assert "--timeout" in about(findings, "workers.none")


def test_what_nobody_looks_after_is_told(setup: Setup) -> None:
    """A lease that is over and no worker to sweep, and a dead letter."""
    bench = Bench(setup.broker)
    desk = bench.desk(seconds=0.2)
    for number in range(2):
        headers = {"id": f"t{number}", "task": "proj.work"}
        bench.publish([[], {}, {}], headers=headers)
    _, second = desk.receive(2)
    desk.driver.dead_letter(second.claim.tag, "q.dead")
    impatient = setup.having(lease_reaper_interval=0.05)
    findings = eventually(
        lambda: worst(found := look(impatient))["leases.overdue"] == "warning" and found
    )
    assert "1 message is overdue" in about(findings, "leases.overdue")
    assert worst(findings)["leases.dead"] == "notice"
    assert "1 in q.dead" in about(findings, "leases.dead")
    assert bench.waiting("q.dead") == 1, "it changes nothing"
    desk.stop()
    bench.close()


@pytest.mark.parametrize("scheme", ["redis://127.0.0.1:{}/0", "amqp://127.0.0.1:{}//"])
def test_a_dead_broker_is_one_clear_error(scheme: str) -> None:
    """Settings and tasks are checked all the same."""
    findings = look(Setup(scheme.format(free_port())))
    found = worst(findings)
    assert found["broker.reached"] == "error"
    assert found["tasks.silent"] == "warning"
    assert "refused" in about(findings, "broker.reached")


def test_a_broker_that_is_silent_does_not_keep_anybody_waiting() -> None:
    """It accepts connections and never answers; kombu itself would wait for ever."""
    with socket.create_server(("127.0.0.1", 0)) as mute:
        began = time.monotonic()
        findings = look(Setup(f"redis://127.0.0.1:{mute.getsockname()[1]}/0"))
        assert time.monotonic() - began < 30
    assert worst(findings)["broker.reached"] == "error"


def test_a_broker_that_falls_silent_while_workers_are_asked_is_told(
    valkey_path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within the patience that the doctor has with brokers; the question has no end of its own."""
    with RedisServer(valkey_path, tmp_path / "valkey").start() as broker:
        sent = Producer.publish

        def publish(*args: Any, **options: Any) -> Any:
            broker.stop()
            return sent(*args, **options)

        monkeypatch.setattr(Producer, "publish", publish)
        with Setup(broker.fresh_url()).app() as app:
            try:
                with pytest.raises(BrokerAway, match="Timeout"):
                    survey(app, driver_class("redis"), timeout=0.3)
            finally:
                broker.cont()


def test_a_broker_user_who_may_not_ask_gets_findings(own_valkey: RedisServer, setup: Setup) -> None:
    """Scripts that are refused are an error, and CONFIG that is refused is none."""
    rules = ["on", ">secret", "~*", "&*", "+@all", "-config", "-eval", "-evalsha", "-script"]
    own_valkey.client().execute_command("ACL", "SETUSER", "limited", *rules)
    url = f"redis://limited:secret@127.0.0.1:{own_valkey.port}/0"
    findings = look(replace(setup, broker=url, backend=None))
    found = worst(findings)
    assert (found["redis.scripts"], found["redis.persistence"]) == ("error", "ok")
    assert "secret" not in json.dumps(findings)


def test_the_consumer_timeout_of_rabbitmq_is_held_against_the_leases(
    rabbitmq: RabbitServer,
) -> None:
    """What the app says, what a queue says, and what is assumed if nobody says anything."""
    assert worst(look(rabbitmq.setup("doctor_classic")))["rabbitmq.deliveries"] == "notice"
    setup = rabbitmq.setup("doctor", rabbitmq.timed, lease_extension=120)
    found = look(setup)
    assert worst(found)["rabbitmq.consumer_timeout"] == "warning"
    assert "assumed" in about(found, "rabbitmq.consumer_timeout")
    (expression,) = re.findall(r"eval '(.+?)\.'", about(found, "rabbitmq.consumer_timeout"))
    assert "1800000" in rabbitmq.evaluate(expression), "what the remedy says tells the server's"
    options = {"consumer_timeout": 90}
    short = look(setup.having(broker_transport_options=options, task_acks_late=True))
    assert "doctor.plain" in about(short, "rabbitmq.plain_tasks")
    bounded = look(setup.having(broker_transport_options=options, task_time_limit=60))
    assert "rabbitmq.plain_tasks" not in worst(bounded)
    assert worst(short)["rabbitmq.consumer_timeout"] == "error"
    assert "doctor.beats" in about(short, "rabbitmq.consumer_timeout")
    long = rabbitmq.setup(
        "doctor_quorum",
        {"x-queue-type": "quorum", "x-consumer-timeout": 50_000_000},
        lease_extension=120,
    )
    wrong = look(setup.having(broker_transport_options={"consumer_timeout": "30m"}))
    assert worst(wrong)["rabbitmq.consumer_timeout"] == "error"
    assert "is '30m'" in about(wrong, "rabbitmq.consumer_timeout")
    found = look(long)
    assert worst(found)["rabbitmq.consumer_timeout"] == "ok"
    assert worst(found)["rabbitmq.deliveries"] == "warning"


def test_a_queue_that_rabbitmq_has_otherwise_is_told_with_the_difference(
    rabbitmq: RabbitServer,
) -> None:
    """A worker would exit at its start; what is not there is not created by a look."""
    quorum = rabbitmq.setup("doctor_declared", {"x-queue-type": "quorum"})
    assert "rabbitmq.declared" not in worst(look(quorum))
    with rabbitmq.setup("doctor_declared").app() as app, app.connection() as connection:
        channel = connection.default_channel
        with pytest.raises(NotFound):
            channel.queue_declare("doctor_declared", passive=True)
        channel.queue_declare("doctor_declared", durable=True, auto_delete=False)
    found = look(quorum)
    assert worst(found)["rabbitmq.declared"] == "error"
    said = about(found, "rabbitmq.declared")
    # Since RabbitMQ 4.3 each queue has a type.
    pattern = r"x-queue-type is (none there, and the value|'classic' there, and) 'quorum'"
    assert re.search(pattern, said), said
    assert "rabbitmqctl delete_queue doctor_declared" in said
    assert "rabbitmq.declared" not in worst(look(rabbitmq.setup("doctor_declared")))


def test_the_attributes_of_sqs_queues_are_held_against_the_leases(tmp_path: Path) -> None:
    """A redrive policy that shutdowns use up, a timeout of nothing, a queue that is not there."""
    pytest.importorskip("moto")
    from harness.moto_server import ACCOUNT, REGION, MotoServer

    with MotoServer(tmp_path).start() as moto:
        dead = f"arn:aws:sqs:{REGION}:{ACCOUNT}:{moto.fresh_queue()}"
        policy = json.dumps({"deadLetterTargetArn": dead, "maxReceiveCount": 3})
        bad = moto.fresh_queue(RedrivePolicy=policy, VisibilityTimeout="0")
        found = look(moto.setup(bad).having(lease_max_duration=50_000))
        marks = worst(found)
        assert marks["sqs.redrive"] == "warning"
        assert "after 3 receives" in about(found, "sqs.redrive")
        assert marks["sqs.visibility_timeout"] == "error"
        assert marks["sqs.twelve_hours"] == "warning"
        assert marks["workers.unasked"] == "notice"
        policy = json.dumps({"deadLetterTargetArn": dead, "maxReceiveCount": 10})
        good = moto.fresh_queue(RedrivePolicy=policy, VisibilityTimeout="30")
        marks = worst(look(moto.setup(good)))
        assert (marks["sqs.redrive"], marks["sqs.visibility_timeout"]) == ("ok", "ok")
        before = moto.client().list_queues()["QueueUrls"]
        assert worst(look(moto.setup("nowhere")))["sqs.queue"] == "notice"
        assert moto.client().list_queues()["QueueUrls"] == before, "it makes none"
        for known, said in ((good, "is not in"), ("nowhere", "does not exist at its url")):
            urls = {known: {"url": moto.queue_url(known)}}
            found = look(moto.setup("nowhere", predefined_queues=urls))
            assert worst(found)["sqs.queue"] == "error"
            assert f"queue nowhere {said} " in about(found, "sqs.queue")


def test_a_database_is_held_against_the_leases(postgres: PostgresServer) -> None:
    """Extension or not, a statement_timeout that is too short, an unlogged queue."""
    database = postgres.fresh_database()
    marks = worst(look(database.setup()))
    assert (marks["pgmq.version"], marks["pgmq.statement_timeout"]) == ("ok", "ok")
    assert (marks["pgmq.queue"], marks["workers.unasked"]) == ("notice", "notice")
    assert (marks["pgmq.checkpoints"], marks["pgmq.keys"]) == ("ok", "ok")
    database.execute("SELECT pgmq.create_unlogged('celery')")
    database.execute(f"ALTER DATABASE {database.name} SET statement_timeout = '50ms'")
    marks = worst(look(database.setup()))
    assert (marks["pgmq.statement_timeout"], marks["pgmq.queue"]) == ("warning", "warning")
    assert marks["pgmq.lock_timeout"] == "ok"
    database.execute(f"ALTER DATABASE {database.name} SET lock_timeout = '50ms'")
    assert worst(look(database.setup()))["pgmq.lock_timeout"] == "warning"


def test_a_user_who_may_only_look_at_a_database_is_told(postgres: PostgresServer) -> None:
    """At a queue of others, and where every transaction is read-only."""
    database = postgres.fresh_database()
    database.execute("SELECT pgmq.create('celery')")
    database.execute(f"CREATE ROLE looks_{database.name} LOGIN")
    for grant in ("USAGE ON SCHEMA", "SELECT ON ALL TABLES IN SCHEMA"):
        database.execute(f"GRANT {grant} pgmq TO looks_{database.name}")
    setup = database.setup()
    theirs = replace(setup, broker=setup.broker.replace("postgres@", f"looks_{database.name}@"))
    assert worst(look(setup))["pgmq.queue"] == "ok"
    found = look(theirs)
    assert worst(found)["pgmq.queue"] == "error"
    assert "may not read and write queue celery" in about(found, "pgmq.queue")
    for check in ("pgmq.checkpoints", "pgmq.keys"):
        assert worst(found)[check] == "notice"
        database.execute(about(found, check).partition("As a user who may: ")[2])
        assert worst(look(theirs))[check] == "ok"
    database.execute("DROP INDEX pgmq.celery_lease_keys_look")
    found = look(theirs)
    assert worst(found)["pgmq.keys"] == "notice"
    (statement,) = re.findall("without a lock: (CREATE INDEX .*)", about(found, "pgmq.keys"))
    database.execute(statement)
    assert worst(look(theirs))["pgmq.keys"] == "ok"
    database.execute(f"ALTER DATABASE {database.name} SET default_transaction_read_only = on")
    found = look(setup)
    assert worst(found)["pgmq.role"] == "error"
    assert "read-only" in about(found, "pgmq.role")


@pytest.mark.parametrize("extension", [True, False])
def test_a_database_without_pgmq_is_told_from_one_that_is_away(
    postgres: PostgresServer, extension: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers, and there is nothing in it that messages could be kept in.

    Failed before: kombu's pool stayed open, and raised in a thread of its own when collected.
    """
    left_open: list[str] = []
    monkeypatch.setattr(
        "psycopg_pool.ConnectionPool.__del__",
        lambda pool: None if pool.closed else left_open.append(pool.name),
    )
    found = look(postgres.bare_database().setup(init_extension=extension))
    assert worst(found)["broker.prepared"] == "error"
    assert ("no pgmq extension" if extension else "not in this") in about(found, "broker.prepared")
    assert "broker.reached" not in worst(found)
    gc.collect()
    assert left_open == []


@pytest.mark.parametrize(
    ("length", "severity"), [(42, "ok"), (43, "error"), (47, "error"), (48, "error")]
)
def test_a_name_that_leaves_no_room_for_dead_letters_is_found(
    postgres: PostgresServer, length: int, severity: str
) -> None:
    """Pgmq allows 47 characters, and ``.dead`` is added to a queue's name."""
    setup = postgres.fresh_database().setup().having(task_default_queue="q" * length)
    assert worst(look(setup)).get("pgmq.queue_name", "ok") == severity


def test_a_worker_with_a_long_name_starts_on_pgmq_as_the_doctor_says(
    postgres: PostgresServer, fleet: WorkerFleet
) -> None:
    """Celery names a queue after it for remote control, which has to be off there."""
    setup = postgres.fresh_database().setup(pool_size=1)
    found = look(setup)
    assert worst(found)["pgmq.remote_control"] == "warning"
    (room,) = map(int, re.findall(r"more than (\d+) char", about(found, "pgmq.remote_control")))
    name = f"w@{'x' * (room - 1)}"
    long = WorkerOptions(module=MODULE, extra=(*QUIET_PEERS, "-n", name))
    refused = fleet.launch(setup, long)
    assert refused.wait(40) != 0
    assert "queue name is too long" in refused.log
    setup = setup.having(worker_enable_remote_control=False)
    assert worst(look(setup))["pgmq.remote_control"] == "ok"
    fleet.launch(setup, long).wait_log(f"{name} ready.", 40)
