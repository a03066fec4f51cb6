"""Redis: servers that hang, refuse, forget, or are gone; no message is lost or doubled by it."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
import redis as redis_py
from redis.connection import AbstractConnection

from celery_lease.brokers.redis import client as driver_client, scripts
from celery_lease.core.delivery import Answer, Renewal
from harness.brokers import RedisServer
from harness.lease_desk import Bench, Desk, bodies
from harness.tcp_proxy import TcpProxy
from harness.waiting import always, eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import redis

pytestmark = pytest.mark.compat


#: For what the two servers could do differently.
both_servers = pytest.mark.parametrize("server", ["valkey_path", "redis_path"], indirect=True)


@pytest.fixture
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RedisServer]:
    """A server of this test alone."""
    binary = request.getfixturevalue(getattr(request, "param", "valkey_path"))
    with RedisServer(binary, tmp_path / "server").start() as server:
        yield server


@pytest.fixture
def bench(server: RedisServer) -> Iterator[Bench]:
    """That server's, to be closed whatever is left of it."""
    bench = Bench(server.url())
    yield bench
    with contextlib.suppress(redis_py.RedisError, OSError):  # some tests leave no server behind
        bench.close()


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let drivers give up after half a second."""
    monkeypatch.setattr(driver_client, "ANSWER_TIMEOUT", 0.5)
    for name in driver_client._BOUNDS:
        monkeypatch.setitem(driver_client._BOUNDS, name, 0.5)


@pytest.fixture
def proxy(server: RedisServer) -> Iterator[TcpProxy]:
    """A way to that server that can be held up."""
    with TcpProxy(server.port) as proxy:
        yield proxy


class Claiming:
    """A message whose claim lies in a socket's buffer, its asker having given up."""

    def __init__(self, server: RedisServer, proxy: TcpProxy, seconds: float = 30.0) -> None:
        self.desk = Bench(f"redis://127.0.0.1:{proxy.port}/0").desk(seconds=seconds)
        self.proxy = proxy
        self.desk.driver.reap(limit=1)  # connects
        claim = self.desk.driver.claim

        def held_claim(*args: Any) -> Any:
            proxy.hold()
            return claim(*args)

        self.desk.driver.claim = held_claim
        eventually(self._gave_up, what="claim given up")
        self.not_claimed = self.desk.holder.not_claimed
        self.near = Bench(server.url()).desk("elsewhere")  # around the proxy
        self.client = server.client()

    def _gave_up(self) -> bool:
        self.desk.turn(0.1)
        return bool(self.desk.holder.not_claimed)

    def arrives(self) -> None:
        """Let the server see the claim now."""
        before = self._claims()
        self.proxy.release()
        eventually(lambda: self._claims() > before, what="claim seen by the server")

    def _claims(self) -> int:
        stats: Any = self.client.info("commandstats")
        return int(stats.get("cmdstat_evalsha", {}).get("calls", 0))

    def is_back_once(self) -> bool:
        """Whether the message is in its queue, once, and nowhere else."""
        return (self.client.llen("q"), self.client.hlen("unacked")) == (1, 0)

    def close(self) -> None:
        self.proxy.cut()
        self.near.close()
        self.desk.driver.close()
        self.client.close()


@pytest.fixture
def claiming(
    bench: Bench,
    hasty: None,  # noqa: ARG001  (marks do not work on fixtures)
    server: RedisServer,
    proxy: TcpProxy,
) -> Iterator[Claiming]:
    """A message of queue "q" in that state."""
    bench.publish("a")
    with bench.desk("warm"):  # the scripts are known, so that one call is one command
        server.client().script_load(scripts.source("claim"))
    claiming = Claiming(server, proxy)
    yield claiming
    claiming.close()


@both_servers
def test_a_claim_that_arrives_after_its_message_went_back_is_not_made(claiming: Claiming) -> None:
    """The message is in its queue, and the late claim must not take it out of nowhere again."""
    assert claiming.near.driver.return_unclaimed(claiming.not_claimed) == [Answer.HELD]
    assert claiming.is_back_once()
    claiming.arrives()
    assert always(claiming.is_back_once, during=0.3)


def test_a_claim_that_was_made_unheard_is_undone(claiming: Claiming) -> None:
    """The message goes back from under its lease, and the delivery was no loss."""
    claiming.arrives()
    assert claiming.client.hlen("unacked") == 1
    assert claiming.near.driver.return_unclaimed(claiming.not_claimed) == [Answer.HELD]
    assert claiming.is_back_once()
    assert claiming.client.lrange("q", 0, 0)[0].startswith(b'{"lease": "000001:000000"')  # type: ignore[index]


def test_a_message_goes_back_once_however_often_that_is_asked(claiming: Claiming) -> None:
    """A return that was done but not answered is asked again, before and after the claim."""
    for _ in range(2):
        assert claiming.near.driver.return_unclaimed(claiming.not_claimed) == [Answer.HELD]
    assert claiming.is_back_once()
    claiming.arrives()
    assert claiming.near.driver.return_unclaimed(claiming.not_claimed) == [Answer.HELD]
    assert claiming.is_back_once()


@both_servers
def test_a_claim_that_was_made_and_reaped_is_not_undone_again(claiming: Claiming) -> None:
    """Its lease expired before its asker came back: a reaper has already returned the message."""
    claiming.arrives()
    (tag,) = [delivery.tag for delivery in claiming.not_claimed]
    claiming.near.driver.extend([Renewal(tag, 0.001)], timeout=1.0)
    eventually(lambda: claiming.near.driver.reap(limit=10))
    assert claiming.near.driver.return_unclaimed(claiming.not_claimed) == [Answer.HELD]
    assert claiming.is_back_once()


def test_a_claim_that_was_made_and_swept_by_kombu_is_not_undone_again(claiming: Claiming) -> None:
    """The same, but a plain worker's sweep was faster."""
    claiming.arrives()
    (tag,) = [delivery.tag for delivery in claiming.not_claimed]
    claiming.near.channel.qos.restore_by_tag(tag)
    assert claiming.near.driver.return_unclaimed(claiming.not_claimed) == [Answer.HELD]
    assert claiming.is_back_once()


@both_servers
def test_a_full_server_neither_loses_nor_keeps_a_message_from_its_lease(
    bench: Bench, server: RedisServer
) -> None:
    """It lets pop but not push; a message in flight is claimed, extended, returned, completed."""
    bench.publish("a", "b", "c", "d")
    desk = bench.desk(prefetch=2)
    client = server.client()
    client.set("ballast", "x" * 2_000_000)
    client.config_set("maxmemory", 1_000_000)
    with pytest.raises(redis_py.OutOfMemoryError):
        client.set("more", "x")
    a, b = desk.receive(2)
    assert desk.extend(a) is Answer.HELD
    a.ack()
    b.requeue()
    messages = desk.receive(2)
    desk.stop()
    for message in messages:
        assert desk.driver.requeue([message.claim.tag], orderly=False, front=True)
    assert set(desk.holder.answers) == {Answer.HELD}
    assert (client.llen("q"), client.hlen("unacked")) == (3, 0)


@both_servers
def test_a_server_that_forgets_its_scripts_is_sent_them(bench: Bench, server: RedisServer) -> None:
    """Between two calls, and while calls are under way."""
    bench.publish("a", "b")
    desk = bench.desk()
    (a, b), client = desk.receive(2), server.client()
    client.script_flush()
    assert desk.extend(a) is Answer.HELD
    client.script_flush()
    a.ack()
    stop = threading.Event()

    def flush() -> None:
        while not stop.is_set():
            client.script_flush()

    flushing = threading.Thread(target=flush)
    flushing.start()
    answers = {desk.extend(b) for _ in range(50)}
    stop.set()
    flushing.join()
    assert answers <= {Answer.HELD, Answer.UNKNOWN}
    assert desk.extend(b) is Answer.HELD


@both_servers
def test_a_server_that_became_a_replica_gives_no_answer_until_it_is_none(
    bench: Bench, server: RedisServer
) -> None:
    """Read-only is neither a renewal nor a loss; a call asked again when it is over succeeds."""
    bench.publish("a", "b")
    desk = bench.desk()
    a, b = desk.receive(2)
    desk.stop()
    client = server.client()
    client.replicaof("127.0.0.1", "1")  # nobody is there: only the role changes
    assert desk.extend(a) is Answer.UNKNOWN
    assert desk.driver.complete([a.claim.tag]) == [Answer.UNKNOWN]
    assert desk.driver.requeue([b.claim.tag], orderly=True, front=True) == [Answer.UNKNOWN]
    with pytest.raises(OSError, match="replica"):
        desk.driver.reap(limit=1)
    client.replicaof("NO", "ONE")
    assert desk.extend(a) is Answer.HELD
    assert desk.driver.complete([a.claim.tag]) == [Answer.HELD]
    assert desk.driver.requeue([b.claim.tag], orderly=True, front=True) == [Answer.HELD]
    assert client.llen("q") == 1


@pytest.mark.usefixtures("hasty")
def test_a_server_that_hangs_is_waited_for_no_longer_than_asked(
    bench: Bench, server: RedisServer
) -> None:
    """Each call ends in time, says that it does not know, and works again afterwards."""
    bench.publish("a", "b")
    desk = bench.desk()
    a, b = desk.receive(2)
    desk.extend(a)
    os.kill(server.pid, signal.SIGSTOP)
    started = time.monotonic()
    many = [Renewal(a.claim.tag, 30.0)] * 5000  # several calls, but none after one unanswered
    assert set(desk.driver.extend(many, timeout=0.3)) == {Answer.UNKNOWN}
    assert 0.25 < time.monotonic() - started < 2.0
    assert desk.driver.complete([b.claim.tag]) == [Answer.UNKNOWN]
    with pytest.raises(OSError, match="not returned"):
        desk.driver.reap(limit=1)
    assert time.monotonic() - started < 5.0
    os.kill(server.pid, signal.SIGCONT)
    assert desk.extend(a) is Answer.HELD
    # The unanswered call may have been carried out when the server woke up.
    assert desk.driver.complete([b.claim.tag])[0] in {Answer.HELD, Answer.LOST}
    assert server.client().hlen("unacked") == 1


def test_a_connection_that_died_between_two_calls_is_made_again(
    bench: Bench, server: RedisServer
) -> None:
    """Without an unanswered call in between: the end of an idle connection can be seen."""
    bench.publish("a")
    desk = bench.desk()
    (a,) = desk.receive()
    assert desk.extend(a) is Answer.HELD
    server.client().client_kill_filter(_type="normal", skipme=True)
    assert desk.extend(a) is Answer.HELD
    a.ack()
    assert desk.holder.answers == [Answer.HELD]


def test_a_server_that_is_gone_is_unknown_and_may_come_back(
    bench: Bench, server: RedisServer
) -> None:
    """Refused connections are answers of no kind; a server without the data knows no lease."""
    bench.publish("a")
    desk = bench.desk()
    (a,) = desk.receive()
    server.kill()
    server.wait()
    assert desk.extend(a) is Answer.UNKNOWN
    assert desk.driver.complete([a.claim.tag]) == [Answer.UNKNOWN]
    server.restart()
    assert desk.extend(a) is Answer.LOST


def test_a_password_that_changed_is_unknown_until_it_is_right_again(
    server: RedisServer,
) -> None:
    """A connection refused for its credentials is one log line, not a crash."""
    client = server.client()
    client.config_set("requirepass", "old")
    bench = Bench(f"redis://:old@127.0.0.1:{server.port}/0")
    bench.publish("a")
    desk = bench.desk()
    (a,) = desk.receive()
    client.config_set("requirepass", "new")
    client.client_kill_filter(_type="normal", skipme=True)
    assert desk.extend(a) is Answer.UNKNOWN
    assert desk.driver.complete([a.claim.tag]) == [Answer.UNKNOWN]
    client.config_set("requirepass", "old")
    assert desk.extend(a) is Answer.HELD
    bench.close()


class Weird(Exception):
    """No error of any client library."""


@pytest.mark.parametrize("error", [OSError("x"), ValueError("x"), Weird("x"), IndexError()])
def test_no_error_of_whatever_kind_escapes_a_driver(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """An unexpected one is no answer either, and a message is on its way back to its queue."""
    bench.publish("a", "b")
    desk = bench.desk()
    (a,) = desk.receive()

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(redis_py.Redis, "evalsha", fail)
    monkeypatch.setattr(AbstractConnection, "send_packed_command", fail)
    assert desk.extend(a) is Answer.UNKNOWN
    assert desk.driver.complete([a.claim.tag]) == [Answer.UNKNOWN]
    with pytest.raises(OSError, match="not returned"):
        desk.driver.reap(limit=1)
    monkeypatch.undo()


def test_more_threads_than_connections_all_get_their_answer(bench: Bench) -> None:
    """They wait for one another instead of being turned away."""
    bench.publish(*range(64))
    desk = bench.desk()
    messages = desk.receive(64)
    barrier = threading.Barrier(len(messages))

    def settle(message: Any) -> None:
        barrier.wait()
        message.ack()

    threads = [threading.Thread(target=settle, args=[message]) for message in messages]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert desk.holder.answers == [Answer.HELD] * len(messages)


@both_servers
def test_a_queue_that_cannot_be_written_holds_up_no_other(
    bench: Bench, server: RedisServer
) -> None:
    """Somebody put another type under its name: its messages wait, the rest is reaped."""
    desk = bench.desk("broken", "q", seconds=0.2)
    bench.publish("a", queue="broken")
    desk.receive()  # first, in whatever order this kombu reads its queues
    bench.publish("b")
    desk.receive()
    desk.stop()
    client = server.client()
    client.set("broken", "no list")
    time.sleep(0.5)
    swept = desk.driver.reap(limit=1)
    assert [(each.queue, bool(each.error)) for each in swept] == [("broken", True), ("q", False)]
    assert client.hlen("unacked") == 1
    client.delete("broken")
    client.zadd("unacked.leases", {client.zrange("unacked.leases", 0, 0)[0]: 1})  # type: ignore[index]
    assert [each.queue for each in desk.driver.reap(limit=10)] == ["broken"]
    assert client.llen("broken") == 1


def test_a_flushed_database_ends_its_leases_and_nothing_else(
    bench: Bench, server: RedisServer
) -> None:
    """What was held is gone for everybody; tokens go on growing, new messages are leased."""
    bench.publish("a")
    desk = bench.desk()
    (a,) = desk.receive()
    server.client().flushall()
    assert desk.extend(a) is Answer.LOST
    assert desk.driver.reap(limit=10) == []
    a.ack()
    bench.publish("b")
    (b,) = desk.receive()
    assert b.claim.token > a.claim.token


def test_records_that_a_plain_sweep_left_behind_are_cleared(
    bench: Bench, server: RedisServer
) -> None:
    """Any number of them holds up no expired lease and stays for no longer than one sweep."""
    bench.publish(*range(20))
    desk = bench.desk(seconds=0.2)
    messages = desk.receive(20)
    desk.stop()
    for message in messages[:19]:
        desk.channel.qos.restore_by_tag(message.claim.tag)
    time.sleep(0.5)
    (reaped,) = desk.driver.reap(limit=5)
    assert reaped.tag == messages[19].claim.tag
    client: redis.Redis = server.client()
    assert [client.exists(f"unacked.{name}") for name in ("leases", "claims")] == [0, 0]
    assert client.llen("q") == 20


def test_claims_without_our_records_are_left_to_kombu(bench: Bench, server: RedisServer) -> None:
    """Somebody deleted them: the message is not touched, and kombu's sweep still returns it."""
    bench.publish("a")
    desk = bench.desk(seconds=0.2)
    (a,) = desk.receive()
    client = server.client()
    client.delete("unacked.claims")
    time.sleep(0.3)
    assert desk.driver.reap(limit=10) == []
    assert client.hlen("unacked") == 1
    desk.channel.qos.restore_by_tag(a.claim.tag)
    assert bodies(desk.receive()) == ["a"]


def test_a_driver_follows_its_channel_to_another_server(
    bench: Bench, redis_server: RedisServer
) -> None:
    """Kombu fails over to the next broker URL; leases there must not be kept at the old one."""
    old: Desk = bench.desk()
    elsewhere = Bench(redis_server.fresh_url())
    elsewhere.publish("a")
    new = elsewhere.desk("nothing")
    old.driver.follow(new.channel)
    (a,) = elsewhere.desk().receive()
    assert old.driver.extend([Renewal(a.claim.tag, 30.0)], timeout=5.0) == [Answer.HELD]
    elsewhere.close()
