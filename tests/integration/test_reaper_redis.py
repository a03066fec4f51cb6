"""Redis: what a sweep returns, in what state, at what cost, and what stops it."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
import redis
from kombu import Connection, Exchange, Queue

from celery_lease.core.delivery import Answer
from celery_lease.worker.reaper import BATCH, BATCHES, RECOVERED, RUNS, STALE, Reaper
from harness.lease_desk import Bench
from harness.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.brokers import RedisServer
    from harness.lease_desk import Desk

pytestmark = pytest.mark.compat

PRIORITIES = (None, -1, 0, 5, 9, 42)
OVERDUE = {"visibility_timeout": 1, "global_keyprefix": "app:"}
MANY = 100_000

ROUTES = {
    "default exchange": Queue("q"),
    "direct exchange": Queue("q", Exchange("direct", "direct"), "key"),
    "topic exchange": Queue("q", Exchange("topic", "topic"), "a.*.#"),
}


@pytest.fixture
def bench(valkey: RedisServer) -> Iterator[Bench]:
    """A database whose plain messages are overdue after a second; its keys have a prefix."""
    bench = Bench(valkey.fresh_url(), options=OVERDUE)
    yield bench
    bench.close()


@pytest.fixture
def reaper(bench: Bench) -> Desk:
    """A consumer of another queue whose driver sweeps."""
    return bench.desk("elsewhere")


def database(bench: Bench) -> Any:
    """Return a client that shows the database as it is."""
    return redis.Redis.from_url(bench.url, socket_timeout=20)


def take(bench: Bench, queue: str = "q", count: int = 1) -> Any:
    """Receive messages as a plain consumer does, which then never says a word again."""
    connection = Connection(bench.url, transport_options=bench.options)
    channel: Any = connection.channel()
    for _ in range(count):
        assert channel.basic_get(queue)
    channel.qos._delivered.clear()
    connection.release()


def stored(bench: Bench) -> list[Any]:
    """Return all texts that wait, with the lists that they are in."""
    client = database(bench)
    lists = sorted(key for key in client.keys("app:q*") if client.type(key) == b"list")
    return [(key, sorted(map(_text, client.lrange(key, 0, -1)), key=str)) for key in lists]


def _text(text: bytes) -> Any:
    message = json.loads(text)
    del message["properties"]["delivery_tag"]
    return message


@pytest.mark.parametrize("route", ROUTES)
def test_plain_messages_go_back_exactly_as_by_kombus_own_sweep(
    both_servers: RedisServer, route: str
) -> None:
    """To the same lists, with the same flags, whatever they are routed by and however urgent."""
    ours, kombus = (Bench(both_servers.fresh_url(), options=OVERDUE) for _ in range(2))
    key = {"topic exchange": "a.b.c", "direct exchange": "key"}.get(route, "q")
    headers = {"headers": {"properties": [], "n": None, "big": 2**60, "e": []}}
    for bench in (ours, kombus):
        for priority in PRIORITIES:
            urgency = {} if priority is None else {"priority": priority}
            bench.publish({"p": priority, "a": '"headers": {'}, queue=ROUTES[route],
                          routing_key=key, headers=headers, **urgency)  # fmt: skip
        take(bench, count=len(PRIORITIES))
    time.sleep(1.1)
    swept = ours.desk("elsewhere").driver.reap(limit=50)
    assert {(each.queue, each.leased, each.error) for each in swept} == {("q", False, "")}
    with Connection(kombus.url, transport_options=OVERDUE) as connection:
        channel: Any = connection.channel()
        ROUTES[route](channel).declare()  # else kombu takes any exchange for a direct one
        channel.qos.restore_visible(interval=1)
    assert stored(ours) == stored(kombus)
    assert sum(len(texts) for _, texts in stored(ours)) == len(PRIORITIES)
    assert all(
        text["properties"]["delivery_info"]["redelivered"] is text["headers"]["redelivered"] is True
        for _, texts in stored(ours)
        for text in texts
    )
    ours.close()
    kombus.close()


def test_a_message_of_an_exchange_unknown_here_finds_its_queue(bench: Bench, reaper: Desk) -> None:
    """A topic exchange that somebody else declared is told by its bindings; kombu would drop it."""
    bench.publish("a", queue=ROUTES["topic exchange"], routing_key="a.b.c")
    take(bench)
    reaper.channel.state.exchanges.pop("topic", None)
    assert [each.error for each in eventually(lambda: reaper.driver.reap(limit=5))] == [""]
    assert bench.waiting() == 1


def test_an_expired_lease_is_no_plain_message_however_old(bench: Bench, reaper: Desk) -> None:
    """Where a sweep for leases did not get to it, the one for plain messages passes it by."""
    bench.publish("leased", "plain")
    loser = bench.desk(seconds=0.1)
    loser.holder.leases = lambda message: message.payload == "leased"
    loser.receive(2)
    loser.stop()
    time.sleep(1.3)
    driver = reaper.driver
    assert [each.leased for each in driver._sweeps.reap_plain(10, driver._plain)] == [False]
    assert [each.leased for each in reaper.driver.reap(limit=10)] == [True]


def test_what_cannot_be_returned_stays_and_holds_nothing_up(bench: Bench, reaper: Desk) -> None:
    """A queue that is no list, no queue at all, and a record that is none; each a minute later."""
    bench.publish("no list", queue=Queue("wrong", Exchange("x", "direct"), "wrong"))
    bench.publish("no queue", queue=Queue("gone", Exchange("x", "direct"), "gone"))
    bench.publish("fine")
    for queue in ("wrong", "gone", "q"):
        take(bench, queue)
    client = database(bench)
    client.set("app:wrong", "text")
    (binding,) = [each for each in client.smembers("app:_kombu.binding.x") if b"gone" in each]
    client.srem("app:_kombu.binding.x", binding)
    client.hset("app:unacked", "odd", "{")
    client.zadd("app:unacked_index", {"odd": 1})
    time.sleep(1.1)
    swept = reaper.driver.reap(limit=50)
    assert sorted(bool(each.error) for each in swept) == [False, True, True, True]
    assert bench.waiting() == 1
    assert client.hlen("app:unacked") == 3
    assert reaper.driver.reap(limit=50) == []


def test_a_mutex_left_without_expiry_stops_kombus_sweep_and_not_this_one(
    bench: Bench, reaper: Desk
) -> None:
    """Kombu's mutex is only a key; a worker killed at the wrong moment leaves it for ever."""
    bench.publish("a")
    take(bench)
    database(bench).set("app:unacked_mutex", "left")
    time.sleep(1.1)
    with Connection(bench.url, transport_options=OVERDUE) as connection:
        channel: Any = connection.channel()
        channel.qos.restore_visible(interval=1)
        assert bench.waiting() == 0
    assert len(reaper.driver.reap(limit=5)) == 1
    assert bench.waiting() == 1


def test_a_channel_with_leases_leaves_the_sweep_to_the_reaper(bench: Bench, reaper: Desk) -> None:
    """Kombu's own would hold up the worker's main loop, and take payloads through it."""
    bench.publish("a")
    take(bench)
    time.sleep(1.1)
    reaper.channel.qos.restore_visible(interval=1)
    assert bench.waiting() == 0
    assert len(reaper.driver.reap(limit=5)) == 1


def test_no_payload_passes_through_the_client(bench: Bench, reaper: Desk) -> None:
    """Megabytes go back for some hundred bytes of traffic, leased and plain ones alike."""
    bench.publish(*["x" * 1_000_000] * 6)
    loser = bench.desk(seconds=0.3)
    loser.consumer.qos(prefetch_count=3)
    loser.receive(3)
    loser.stop()
    take(bench, count=3)
    client = database(bench)
    time.sleep(1.1)
    before = client.info("stats")
    assert len(reaper.driver.reap(limit=50)) == 6
    after = client.info("stats")
    for direction in ("input", "output"):
        name = f"total_net_{direction}_bytes"
        assert after[name] - before[name] < 100_000
    assert bench.waiting() == 6


def test_a_lease_extended_in_the_same_instant_stays_or_is_lost(bench: Bench) -> None:
    """Never both: who was told that it holds its lease is not reaped."""
    bench.publish(*range(200))
    desk, reaper = bench.desk(seconds=1.5), bench.desk("elsewhere")
    messages = desk.receive(200)
    desk.stop()
    time.sleep(max(0.0, messages[0].claim.asked_at + 1.4 - desk_clock()))
    with ThreadPoolExecutor(2) as threads:
        extended = threads.submit(lambda: [desk.extend(message) for message in messages])
        swept = threads.submit(
            lambda: [each.tag for _ in range(60) for each in reaper.driver.reap(limit=5)]
        )
        answers, reaped = extended.result(), set(swept.result())
    held = {m.claim.tag for m, a in zip(messages, answers, strict=True) if a is Answer.HELD}
    assert not held & reaped
    assert all(desk.extend(m) is Answer.HELD for m in messages if m.claim.tag in held)


def desk_clock() -> float:
    """Return the time that claims are made by."""
    from celery_lease.core.clock import host_seconds

    return host_seconds()


def test_sweeps_at_once_return_each_plain_message_once(bench: Bench) -> None:
    """As with leases; kombu needs its mutex for this."""
    bench.publish(*range(60))
    take(bench, count=60)
    time.sleep(1.1)
    reapers = [bench.desk("elsewhere") for _ in range(3)]
    with ThreadPoolExecutor(3) as threads:
        swept = threads.map(
            lambda desk: [each.tag for _ in range(15) for each in desk.driver.reap(limit=7)],
            reapers,
        )
    tags = [tag for each in swept for tag in each]
    assert len(tags) == len(set(tags)) == 60
    assert bench.waiting() == 60


def test_a_sweep_costs_what_is_overdue_and_not_what_is_held(bench: Bench, reaper: Desk) -> None:
    """With 100,000 messages unacknowledged; and when all are overdue, a sweep takes its share."""
    client = database(bench)
    text = '[{"body": "e30=", "headers": {}, "properties": {"delivery_info": {}}}, "", "q"]'

    def fill(score: float) -> None:
        for start in range(0, MANY, 10_000):
            tags = [f"t{number}" for number in range(start, start + 10_000)]
            client.hset("app:unacked", mapping=dict.fromkeys(tags, text))
            client.zadd("app:unacked_index", dict.fromkeys(tags, score))

    bench.publish(*range(20))
    loser = bench.desk(seconds=0.2)
    loser.receive(20)
    loser.stop()
    fill(time.time() + 600)
    sweep = Reaper(reaper.driver)
    reaped = eventually(sweep.run_once)
    assert len(reaped) == 20
    assert sweep.run_once() == []
    took = [_seconds(sweep.run_once) for _ in range(5)]
    assert min(took) < 0.1  # a walk over the whole index takes longer
    fill(1.0)
    assert len(sweep.run_once()) == BATCH * BATCHES
    assert client.llen("app:q") == 20 + BATCH * BATCHES
    assert client.hlen("app:unacked") == MANY - BATCH * BATCHES
    counted = sweep.stats.read()
    assert counted[RECOVERED] == 20 + BATCH * BATCHES
    assert counted[STALE] > 0
    assert counted[RUNS] >= 8


def _seconds(call: Any) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def test_a_look_at_what_is_overdue_changes_nothing(bench: Bench, reaper: Desk) -> None:
    """A dry run says what a sweep would return."""
    bench.publish("a", "b")
    loser = bench.desk(seconds=0.2)
    loser.consumer.qos(prefetch_count=1)
    (message,) = loser.receive()
    loser.stop()
    take(bench)
    time.sleep(1.2)
    seen = reaper.driver.overdue(limit=10)
    assert [each.leased for each in seen] == [True, False]
    assert seen[0].tag == message.claim.tag
    assert bench.waiting() == 0
    assert [each.tag for each in reaper.driver.reap(limit=10)] == [each.tag for each in seen]
