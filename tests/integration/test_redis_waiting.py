"""Redis: idle consumers are told of messages, take turns, and ask for nothing meanwhile."""

from __future__ import annotations

import logging
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from kombu import Consumer, Queue
from redis.exceptions import ResponseError

from celery_lease.brokers.redis import waiting
from celery_lease.brokers.redis.waiting import Step
from harness.brokers import RedisServer
from harness.lease_desk import Bench, Desk, bodies
from harness.ledger import now
from harness.relay_stage import RelayStage
from harness.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import redis

    from harness.workers import Worker

pytestmark = pytest.mark.compat

PREFIX = "{tenant}:"
#: Seconds between two looks of a channel in line, in one test.
SHORT_LINE = 3.0


@pytest.fixture
def server(both_servers: RedisServer) -> RedisServer:
    """Each kind of server."""
    return both_servers


@pytest.fixture
def bench(server: RedisServer) -> Iterator[Bench]:
    """A database of this test alone."""
    bench = Bench(server.fresh_url(), options={"global_keyprefix": PREFIX})
    yield bench
    bench.close()


def step(desk: Desk) -> Step:
    """Return what a consumer does."""
    standing = desk.channel.qos.receiver._standing
    is_asking = bool(desk.channel._in_poll)
    step: Step = standing._step
    return step if is_asking or step is Step.REST else Step.LOOK


def settle(*desks: Desk) -> None:
    """Let consumers work until each of them waits, the first one first.

    A new one takes the place of one that watches, which then gets in line.
    """
    for desk in (*desks, *desks):
        eventually(lambda desk=desk: desk.turn(0.01) or step(desk) in {Step.REST, Step.STAND})


def watcher(*desks: Desk) -> Desk:
    """Return the consumer that watches."""
    (found,) = [desk for desk in desks if step(desk) is Step.REST]
    return found


def served(*desks: Desk, within: float = 10.0) -> Desk:
    """Let consumers work until one of them has a message, and return it."""
    end = time.monotonic() + within
    while time.monotonic() < end:
        for desk in desks:
            desk.turn(0.001)
            if desk.received:
                return desk
    raise AssertionError("nobody has a message")


def test_idle_consumers_take_turns(bench: Bench) -> None:
    """The one that has waited longest is served, as among plain ones."""
    desks = [bench.desk() for _ in range(4)]
    settle(*desks)
    takers: Counter[int] = Counter()
    for number in range(12):
        bench.publish(number)
        taker = served(*desks)
        takers[desks.index(taker)] += 1
        assert bodies(taker.receive()) == [number]
        settle(*desks)
    assert set(takers.values()) == {3}


def test_while_nothing_happens_nothing_is_asked(bench: Bench, client: redis.Redis) -> None:
    """Neither by who watches nor by who stands in line, for seconds."""
    desks = [bench.desk() for _ in range(3)]
    settle(*desks)
    before = calls(client)
    end = time.monotonic() + waiting.LINE - 3
    while time.monotonic() < end:
        for desk in desks:
            desk.turn(0.05)
    assert calls(client) - before == 1  # this question


def calls(client: redis.Redis) -> int:
    """Return how many commands the server has run."""
    stats: Any = client.info("commandstats")
    return int(sum(each["calls"] for each in stats.values()))


def test_what_is_kept_of_those_that_wait_expires(bench: Bench, client: redis.Redis) -> None:
    """Names of consumers, and bells that nobody hears."""
    desk, other = bench.desk(), bench.desk("q", "r")
    settle(desk, other)
    bench.publish("a")
    assert bodies(desk.receive()) == ["a"]
    names = [f"{PREFIX}unacked.{each}" for each in ("bell.*", "watcher.*", "probe.*")]
    kept = {key: client.pttl(key) for name in names for key in client.keys(name)}  # type: ignore[union-attr]
    assert kept
    assert all(0 < left <= 30_000 for left in kept.values())


def test_a_watcher_that_stands_still_is_replaced(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that was stopped, or whose connections hang; messages wait for it only once."""
    monkeypatch.setattr(waiting, "LINE", SHORT_LINE)
    monkeypatch.setattr("celery_lease.brokers.redis.standing.LINE", SHORT_LINE)
    desks = [bench.desk() for _ in range(3)]
    settle(*desks)
    still = watcher(*desks)
    others = [desk for desk in desks if desk is not still]
    bench.publish("late")
    began = time.monotonic()
    taker = served(*others)
    assert time.monotonic() - began < 2 * SHORT_LINE
    assert bodies(taker.receive()) == ["late"]
    settle(*others)
    for number in range(4):
        bench.publish(number)
        began = time.monotonic()
        assert bodies(served(*others).receive()) == [number]
        assert time.monotonic() - began < SHORT_LINE
        settle(*others)


def test_a_watcher_that_stops_or_may_take_nothing_passes_its_place_on(bench: Bench) -> None:
    """At once: the next one is told of the next message."""
    desks = [bench.desk(prefetch=1) for _ in range(3)]
    settle(*desks)
    first = watcher(*desks)
    first.holder.backlogged = True
    first.turn(0.01)
    desks.remove(first)
    settle(*desks)
    second = watcher(*desks)
    second.consumer.cancel()
    desks.remove(second)
    settle(*desks)
    third = watcher(*desks)
    began = time.monotonic()
    bench.publish("a")
    assert bodies(third.receive()) == ["a"]
    assert time.monotonic() - began < waiting.LINE / 2


def test_who_takes_nothing_more_does_not_keep_a_bell(bench: Bench) -> None:
    """It had been called when it was told to take nothing more; the next one comes."""
    desks = [bench.desk() for _ in range(3)]
    settle(*desks)
    first = watcher(*desks)
    second, third = (desk for desk in desks if desk is not first)
    bench.publish("a")
    assert bodies(first.receive()) == ["a"]  # the bell rings for the second
    second.holder.backlogged = True
    eventually(lambda: second.turn(0.01) or not second.channel._in_poll)
    second.turn(0.01)
    first.stop()
    began = time.monotonic()
    bench.publish("b")
    assert bodies(third.receive()) == ["b"]
    assert time.monotonic() - began < waiting.LINE / 2


def test_of_several_queues_each_is_watched_by_somebody(bench: Bench) -> None:
    """One consumer stands in line for a queue and watches another."""
    first, second = bench.desk("a"), bench.desk("a", "b")
    settle(first, second)
    began = time.monotonic()
    bench.publish("x", queue="b")
    assert bodies(second.receive()) == ["x"]
    settle(second)
    bench.publish("y", queue="a")
    assert bodies(served(first, second).receive()) == ["y"]
    settle(first, second)
    bench.publish("low", queue="b", priority=6)
    assert bodies(second.receive()) == ["low"]
    assert time.monotonic() - began < waiting.LINE


def test_a_queue_that_is_added_is_watched_at_once(bench: Bench) -> None:
    """By one that stands in line, too; and one that is taken away is left to others."""
    desks = [bench.desk("a"), bench.desk("a")]
    settle(*desks)
    first = watcher(*desks)
    (second,) = (desk for desk in desks if desk is not first)
    assert step(second) is Step.STAND
    began = time.monotonic()
    more = Consumer(second.channel, [Queue("b")], on_message=second.received.append)
    more.consume()
    settle(second)
    bench.publish("x", queue="b")
    assert bodies(second.receive()) == ["x"]
    first.consumer.cancel()
    settle(second)
    bench.publish("y", queue="a")
    assert bodies(second.receive()) == ["y"]
    assert time.monotonic() - began < waiting.LINE


def test_a_channel_is_closed_at_once_while_it_waits(bench: Bench) -> None:
    """Kombu reads the reply to what is under way first."""
    first, second = bench.desk(), bench.desk()
    settle(first, second)
    assert {step(first), step(second)} == {Step.REST, Step.STAND}
    began = time.monotonic()
    second.connection.release()
    first.connection.release()
    assert time.monotonic() - began < waiting.LINE / 2


def test_lost_connections_are_made_again_and_what_they_told_is_told(
    bench: Bench, client: redis.Redis
) -> None:
    """That on which news come is as good as lost with the other one, and by itself."""
    desk = bench.desk()
    settle(desk)
    watch = desk.channel.qos.receiver._standing._watch
    client.client_kill_filter(_id=str(_id_of(client, watch.connection)))
    eventually(lambda: desk.turn(0.01) or desk.channel.qos.receiver._standing._watch is not watch)
    settle(desk)
    began = time.monotonic()
    bench.publish("a")
    assert bodies(desk.receive()) == ["a"]
    assert time.monotonic() - began < waiting.LINE / 2


def _id_of(client: redis.Redis, connection: Any) -> int:
    port = connection._sock.getsockname()[1]
    clients: Any = client.client_list()
    (found,) = [each["id"] for each in clients if each["addr"].endswith(f":{port}")]
    return int(found)


@pytest.mark.parametrize("lacks", ["-client|tracking", "-client|unblock", "resetchannels"])
def test_a_user_that_may_not_be_told_looks_for_messages(
    request: pytest.FixtureRequest, tmp_path: Path, caplog: pytest.LogCaptureFixture, lacks: str
) -> None:
    """All the time, and says so once; beside one that is told, and none is lost."""
    with RedisServer(request.getfixturevalue("valkey_path"), tmp_path / "server").start() as own:
        rules = ("on", ">secret", "~*", "&*", "+@all", lacks)
        own.client().execute_command("ACL", "SETUSER", "poor", *rules)
        rich = Bench(own.url())
        poor = Bench(f"redis://poor:secret@127.0.0.1:{own.port}/0")
        looks, notified = poor.desk(), rich.desk()
        with caplog.at_level(logging.INFO, "celery_lease"):
            settle(notified)
            eventually(lambda: looks.turn(0.01) or looks.channel.qos.receiver.polls)
            for number in range(6):
                rich.publish(number)
                assert bodies(served(looks, notified).receive()) == [number]
        said = [each for each in caplog.messages if "polls its queues" in each]
        assert len(said) == 1
        notified.stop()
        began = time.monotonic()
        rich.publish("last")
        assert bodies(looks.receive()) == ["last"]
        assert time.monotonic() - began < waiting.LINE
        poor.close()
        rich.close()


def test_a_user_that_may_not_take_messages_is_told(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """The script's error is the channel's; only a key that is no list is passed over.

    Changed: every error of ``RPOP`` is that of such a key; failed with: not within 10.0 s.
    """
    with RedisServer(request.getfixturevalue("valkey_path"), tmp_path / "server").start() as own:
        rules = ("on", ">secret", "~*", "&*", "+@all", "-rpop")
        own.client().execute_command("ACL", "SETUSER", "poor", *rules)
        poor = Bench(f"redis://poor:secret@127.0.0.1:{own.port}/0")
        desk = poor.desk()
        with pytest.raises(ResponseError, match="rpop"):
            eventually(lambda: desk.turn(0.01))
        poor.close()


def in_line(client: redis.Redis, worker: Worker) -> bool:
    """Whether a worker waits at a bell; the port of its end of the connection tells whose it is."""
    ports = {each.laddr.port for each in psutil.Process(worker.pid).net_connections()}
    clients = client.client_list(_type="normal")
    return any(
        each["cmd"] == "blpop" and int(each["addr"].rpartition(":")[2]) in ports for each in clients
    )


def test_a_message_whose_watcher_was_killed_is_found_by_the_next_worker(
    valkey: RedisServer, tmp_path: Path
) -> None:
    """After one look of those in line at most; it watches then, and finds the next one at once."""
    stage = RelayStage(valkey, tmp_path)
    try:
        workers = [stage.start(), stage.start()]
        waits = [lambda worker=worker: in_line(stage.broker, worker) for worker in workers]
        eventually(lambda: sum(each() for each in waits) == 1, 20, what="one watches, one waits")
        killed = workers[0] if waits[1]() else workers[1]
        killed.kill_group()
        killed.wait()
        delays = []
        for _ in range(2):
            sent_at = now()
            delays.append(stage.wait("start", stage.send("short")).at - sent_at)
            stage.wait_settled()
        assert delays[0] < waiting.LINE + 3.0
        assert delays[1] < 3.0
    finally:
        stage.close()
