"""Redis: every way to reach a server that Celery has, and what leases cost it."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

from celery_lease.core.delivery import Answer, Renewal
from harness.lease_desk import Bench
from harness.setup import Setup
from harness.waiting import eventually
from harness.workers import WorkerOptions

if TYPE_CHECKING:
    from harness.brokers import RedisServer, SentinelSet, TlsServer, UnixSocketServer
    from harness.ledger import Ledger
    from harness.workers import WorkerFleet

pytestmark = pytest.mark.compat


def serves_leases(bench: Bench) -> None:
    """Claim, extend, lose, reap, return and complete once each."""
    bench.publish("a")
    desk = bench.desk()
    (first,) = desk.receive()
    assert desk.extend(first) is Answer.HELD
    assert desk.extend(first, 0.001) is Answer.HELD
    eventually(lambda: desk.driver.reap(limit=10))
    (second,) = desk.receive()
    second.requeue()
    (third,) = desk.receive()
    assert (third.claim.deliveries, third.claim.losses) == (3, 1)
    third.ack()
    assert desk.holder.answers == [Answer.HELD, Answer.HELD]
    bench.close()


def test_leases_work_over_a_unix_socket(unix_server: UnixSocketServer) -> None:
    """With a database number, as kombu takes it."""
    serves_leases(Bench(unix_server.fresh_url()))


def test_leases_work_over_tls(tls_server: TlsServer) -> None:
    """With the certificate checked."""
    serves_leases(Bench(tls_server.fresh_url()))


def test_leases_work_with_a_password(own_valkey: RedisServer) -> None:
    """The default user's."""
    own_valkey.client().config_set("requirepass", "s:e/c@r%t")
    url = f"redis://:s%3Ae%2Fc%40r%25t@127.0.0.1:{own_valkey.port}/3"
    serves_leases(Bench(url))


def test_leases_need_no_dangerous_command(own_valkey: RedisServer) -> None:
    """A user who may do what kombu does, in its own part of the keys, and run scripts."""
    own_valkey.client().acl_setuser(
        "app",
        enabled=True,
        passwords=["+secret"],
        keys=["app:*"],
        channels=["*"],
        categories=["+@all", "-@admin", "-@dangerous"],
    )
    url = f"redis://app:secret@127.0.0.1:{own_valkey.port}/0"
    serves_leases(Bench(url, {"global_keyprefix": "app:"}))
    names: Any = own_valkey.client().keys("*")
    assert all(name.startswith(b"app:") for name in names)


def test_a_database_has_its_own_leases(valkey: RedisServer) -> None:
    """A reaper of another database does not see them."""
    one, two = Bench(valkey.fresh_url()), Bench(valkey.fresh_url())
    one.publish("a")
    desk = one.desk(seconds=0.1)
    desk.receive()
    desk.stop()
    time.sleep(0.2)
    assert two.desk().driver.reap(limit=10) == []
    assert len(desk.driver.reap(limit=10)) == 1
    one.close()
    two.close()


def test_a_lease_outlives_the_failover_of_its_server(sentinel_set: SentinelSet) -> None:
    """The promoted replica knows it; also after the channel that it came by was closed."""
    bench = Bench(sentinel_set.fresh_url(), dict(sentinel_set.transport_options))
    bench.publish("a", "b")
    desk = bench.desk()
    a, b = desk.receive(2)
    desk.holder.kept |= {a.claim.tag, b.claim.tag}
    assert desk.extend(a) is Answer.HELD
    desk.connection.release()
    assert desk.extend(a) is Answer.HELD
    sentinel_set.wait_replicated()
    sentinel_set.failover()
    eventually(lambda: desk.extend(a) is Answer.HELD, within=20, every=0.2)
    assert desk.driver.complete([a.claim.tag]) == [Answer.HELD]
    assert desk.driver.requeue([b.claim.tag], orderly=True, front=True) == [Answer.HELD]
    # With nobody left to ask, an answer comes in time all the same.
    os.kill(sentinel_set.sentinel.pid, signal.SIGSTOP)
    os.kill(sentinel_set.replica.pid, signal.SIGSTOP)
    started = time.monotonic()
    assert desk.driver.extend([Renewal(b.claim.tag, 30.0)], timeout=0.5) == [Answer.UNKNOWN]
    assert desk.driver.extend([Renewal(b.claim.tag, 30.0)], timeout=0.5) == [Answer.UNKNOWN]
    assert time.monotonic() - started < 5.0
    for server in (sentinel_set.sentinel, sentinel_set.replica):
        os.kill(server.pid, signal.SIGCONT)
    desk.driver.close()


def test_a_thousand_leases_are_extended_in_one_round_trip(valkey: RedisServer) -> None:
    """One command of the client, and no payload is read for it."""
    bench = Bench(valkey.fresh_url())
    bench.publish(*range(1000))
    desk = bench.desk()
    messages = desk.receive(1000, within=30)
    desk.stop()
    renewals = [Renewal(message.claim.tag, 30.0) for message in messages]
    assert desk.driver.extend(renewals, timeout=5.0) == [Answer.HELD] * 1000
    with valkey.client() as client, client.monitor() as monitor:
        assert desk.driver.extend(renewals, timeout=5.0) == [Answer.HELD] * 1000
        client.echo("the end")
        seen = [monitor.next_command() for _ in range(5)]
    database = int(bench.url.rpartition("/")[2])
    ours = [each for each in seen if each["db"] == database]
    assert [each["command"].split()[0] for each in ours if each["client_type"] == "tcp"] == [
        "EVALSHA"
    ]
    scripted = {each["command"].split()[0] for each in ours if each["client_type"] == "lua"}
    assert scripted == {"HDEL", "TIME", "ZMSCORE", "ZADD"}
    bench.close()


def test_a_worker_leases_at_its_next_address(
    own_valkey: RedisServer, redis_server: RedisServer, fleet: WorkerFleet, ledger: Ledger
) -> None:
    """Its broker is gone; at the next of its broker URLs its channel leases as before."""
    first, second = own_valkey.fresh_url(), redis_server.fresh_url()
    client = redis_server.client(Setup(second).database)
    conf = {"worker_enable_remote_control": False, "task_ignore_result": True}
    leased = WorkerOptions(module="harness.app_leased", concurrency=2)
    worker = fleet.start(Setup(f"{first};{second}", conf=conf), leased)
    task = Setup(first).app().send_task("any.work", (0.1,))
    ledger.wait("end", task.id)
    own_valkey.kill()
    task = Setup(second).app().send_task("any.work", (1.0,))
    ledger.wait("start", task.id, within=60)
    assert client.zcard("unacked.leases") == 1
    ledger.wait("end", task.id)
    eventually(lambda: client.hlen("unacked") == 0)
    assert "leases follow the connection to another broker" in worker.log
