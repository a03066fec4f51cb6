"""Redis with very many messages held: no script keeps the server to itself, and order is kept.

``CROWD=100000`` takes minutes.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import redis

from celery_lease.brokers.redis.driver import BATCH, PIECE
from celery_lease.core.delivery import Answer, Renewal
from celery_lease.worker.reaper import Reaper
from harness.lease_desk import Bench

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.brokers import RedisServer

pytestmark = [pytest.mark.compat, pytest.mark.timeout(600), pytest.mark.long]

MANY = int(os.environ.get("CROWD", "20000"))
LONGEST = 0.005  # seconds of the server's time
SMALL, LARGE = 800, 50_000  # bytes


@pytest.fixture(params=["valkey", "redis_server"])
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    """An empty database; plain messages are overdue after a second."""
    server: RedisServer = request.getfixturevalue(request.param)
    bench = Bench(server.fresh_url(), options={"visibility_timeout": 1})
    yield bench
    with redis.Redis.from_url(bench.url, socket_timeout=60) as client:
        client.flushdb()
    bench.close()


@pytest.fixture
def client(bench: Bench) -> Iterator[Any]:
    """Shows the database, and fills it."""
    with redis.Redis.from_url(bench.url, socket_timeout=60) as client:
        yield client


class Scripts:
    """What scripts cost the server: its processor's time, whatever else the host does meanwhile."""

    calls = 0
    seconds = 0.0

    def are_short(self, most: float = LONGEST) -> bool:
        """Whether one of them takes 5 ms at most; they are all alike."""
        return self.calls > 0 and self.seconds / self.calls < most


@contextmanager
def watched(client: Any) -> Iterator[Scripts]:
    """Note what all scripts cost that run meanwhile."""
    found = Scripts()
    before = _spent(client)
    yield found
    found.calls, found.seconds = (
        after - b for after, b in zip(_spent(client), before, strict=True)
    )


def _spent(client: Any) -> tuple[int, float]:
    stats, cpu = client.info("commandstats"), client.info("cpu")
    calls = sum(stats.get(f"cmdstat_{each}", {"calls": 0})["calls"] for each in ("eval", "evalsha"))
    return calls, sum(cpu[f"used_cpu_{each}_main_thread"] for each in ("sys", "user"))


def hold(client: Any, count: int, size: int, expiry: float, *, texts: bool = True) -> list[str]:
    """Fill the records as a worker's claims do; the first was delivered first."""
    tags = [f"{(number * 7919) % 1_000_003:07d}#{number:012d}" for number in range(count)]
    head, tail = '{"lease": "000001:000001", "body": "', f'{"x" * size}"}}, "", "q"]'
    cut = len(', "", "q"]')
    for start in range(0, count, 2_000):
        part = range(start, min(start + 2_000, count))
        pipe = client.pipeline(transaction=False)
        scores = dict.fromkeys([tags[n] for n in part], expiry)
        pipe.zadd("unacked_index", scores)
        pipe.zadd("unacked.leases", scores)
        if texts:
            pipe.hset("unacked", mapping={tags[n]: f"[{head}{n:06d}{tail}" for n in part})
        about = {"cut": cut, "key": "q", "queue": "q", "deliveries": 1, "losses": 0}
        pipe.hset(
            "unacked.claims",
            mapping={tags[n]: json.dumps({"token": n + 1, "since": 1.0, **about}) for n in part},
        )
        pipe.execute()
    return tags


def numbers(client: Any) -> list[int]:
    """Return the messages of the queue in the order in which they will be delivered."""
    texts = client.lrange("q", 0, -1)[::-1]
    return [int(text.partition(b'"body": "')[2][:6]) for text in texts]


def test_ten_thousand_go_back_within_a_second_and_in_pieces(bench: Bench, client: Any) -> None:
    """While others are held: each piece takes the server a moment, all of them a second."""
    tags = hold(client, MANY, SMALL, time.time() + 600)
    driver = bench.desk().driver
    with watched(client) as scripts:
        answers = driver.requeue(tags[:10_000][::-1])
    assert set(answers) == {Answer.HELD}
    assert len(answers) == 10_000
    assert numbers(client) == list(range(10_000))
    assert scripts.are_short()
    assert scripts.seconds < 1.0


def test_long_messages_go_back_in_smaller_pieces(bench: Bench, client: Any) -> None:
    """By an orderly return, as losses that rest, and by a reaper: it counts bytes, too."""
    driver = bench.desk().driver
    for how in ("orderly", "lost", "reaped"):
        tags = hold(client, 200, LARGE, time.time() + (600 if how != "reaped" else -1))
        with watched(client) as scripts:
            if how == "reaped":
                assert len(driver.reap(limit=1000)) == 200
            else:
                answers = driver.requeue(tags[::-1], orderly=how == "orderly")
                assert answers == [Answer.HELD] * 200
        assert scripts.are_short(), how
        assert numbers(client) == list(range(200))
        client.delete("q")


def test_of_a_dead_worker_all_come_back_in_one_sweep_oldest_first(
    bench: Bench, client: Any
) -> None:
    """All leases that expired in one moment, and the plain messages that are overdue."""
    hold(client, MANY, SMALL, time.time() - 1)
    bench.publish("plain", queue="other")
    with bench.channel() as channel:
        assert channel.basic_get("other")
        channel.qos._delivered.clear()
    time.sleep(1.1)
    sweep = Reaper(bench.desk("elsewhere").driver)
    with watched(client) as scripts:
        reaped = sweep.run_once()
    assert len(reaped) == MANY + 1
    assert numbers(client) == list(range(MANY))
    assert bench.waiting("other") == 1
    assert scripts.are_short()


def test_stale_records_and_old_refusals_are_cleared_in_pieces(bench: Bench, client: Any) -> None:
    """As a sweep of plain kombu leaves them."""
    hold(client, MANY, 0, 1.0, texts=False)
    client.zadd("unacked.refusals", {f"r{number}": 1.0 for number in range(MANY)})
    driver = bench.desk("elsewhere").driver
    with watched(client) as scripts:
        assert driver.reap(limit=MANY) == []
    assert scripts.are_short()
    assert client.zcard("unacked.leases") == client.hlen("unacked.claims") == 0
    assert client.zscore("unacked.refusals", "r0") is None


def test_plain_messages_come_back_in_pieces_oldest_first(bench: Bench, client: Any) -> None:
    """As many as there are; of long ones fewer at once."""
    driver = bench.desk("elsewhere").driver
    for count, size in ((2_000, SMALL), (200, LARGE)):
        tail = '", "headers": {}, "properties": {"delivery_info": {}}}, "", "q"]'
        texts = {f"p{n % 7}-{n}": f'[{{"body": "{n:06d}{"x" * size}{tail}' for n in range(count)}
        for start in range(0, count, 500):
            part = list(texts)[start : start + 500]
            client.hset("unacked", mapping={each: texts[each] for each in part})
        client.zadd("unacked_index", {tag: 1.0 + n for n, tag in enumerate(texts)})
        with watched(client) as scripts:
            assert len(driver.reap(limit=count)) == count
        assert scripts.are_short(), size
        assert numbers(client) == list(range(count))
        client.delete("q")


def test_all_leases_of_a_crowd_are_extended_in_short_calls(bench: Bench, client: Any) -> None:
    """All of one worker: a few calls for 1,000 leases, sent together."""
    tags = hold(client, MANY, 0, time.time() + 600)
    driver = bench.desk().driver
    with watched(client) as scripts:
        answers = driver.extend([Renewal(tag, 900) for tag in tags], timeout=60)
    assert set(answers) == {Answer.HELD}
    assert MANY <= PIECE * scripts.calls <= MANY + BATCH  # the first ones are sent twice
    assert scripts.are_short()


def test_each_call_of_a_crowd_is_extended_in_the_order_of_the_leases(
    bench: Bench, client: Any
) -> None:
    """Also after the server has forgotten the script; lost ones are told by their place."""
    tags = hold(client, 2 * BATCH + PIECE, 0, time.time() + 600)
    lost = {0, PIECE - 1, PIECE, BATCH - 1, BATCH, 2 * BATCH + PIECE - 1}
    client.zrem("unacked_index", *(tags[each] for each in lost))
    driver = bench.desk().driver
    for _ in range(2):
        client.script_flush()
        answers = driver.extend([Renewal(tag, 900) for tag in tags], timeout=60)
        assert {n for n, answer in enumerate(answers) if answer is Answer.LOST} == lost
        assert answers.count(Answer.HELD) == len(tags) - len(lost)


def test_what_ends_or_is_looked_at_together_is_dealt_with_in_short_calls(
    bench: Bench, client: Any
) -> None:
    """What a broker did not answer is completed at once later; a person lists all."""
    tags = hold(client, MANY, 200, time.time() + 600)
    driver = bench.desk().driver
    with watched(client) as scripts:
        assert len(list(driver.records().leases())) == MANY
    assert scripts.are_short()
    for claims_keys in (False, True):
        driver.claims_keys = claims_keys
        ended, tags = tags[: MANY // 4], tags[MANY // 4 :]
        with watched(client) as scripts:
            assert set(driver.complete(ended)) == {Answer.HELD}
        assert scripts.are_short()
    assert client.hlen("unacked") == len(tags)


def test_the_newest_of_many_dead_letters_is_moved_without_a_look_at_the_others(
    bench: Bench, client: Any
) -> None:
    """A list is searched from the nearer end."""
    head = '{"lease": "000000:000000", "dead": {"queue": "q"}, "headers": {"id": "%07d"}, '
    tail = f'"body": "{"x" * SMALL}", "properties": {{}}}}'
    for start in range(0, MANY, 1_000):
        client.lpush("q.dead", *(head % n + tail for n in range(start, start + 1_000)))
    client.sadd("unacked.dead", "q.dead")
    letters = bench.desk().driver.dead_letters()
    found = list(letters.letters("q.dead"))
    assert [found[at].is_late for at in (0, 1, -2, -1)] == [False, False, True, True]
    with watched(client) as scripts:
        assert all(letters.purge(found[-each]) for each in range(1, 6))
        assert letters.retry(found[0])
    assert scripts.are_short()
    assert client.llen("q.dead") == MANY - 6


def test_parked_messages_of_full_keys_are_looked_after_in_short_calls(
    bench: Bench, client: Any
) -> None:
    """A key of 1,000 holders is counted anew at each look."""
    now = time.time()
    tags = hold(client, 1_100, 0, now + 600)
    facts = {"key": "K", "limit": 1000, "busy": "wait", "order": "000.1", "place": ""}
    about = {"cut": len(', "", "q"]'), "key": "q", "queue": "q", "deliveries": 1, "losses": 0}
    client.zadd("unacked.holders.K", {tag: number for number, tag in enumerate(tags[:1_000])})
    for number, tag in enumerate(tags[1_000:]):
        place = f"000.1.{number:016d}"
        record = {"token": 1, "since": 1.0, "exclusive": facts, **about}
        parked = json.dumps(record if number % 2 else {"parked": place, **record})
        client.hset("unacked.claims", tag, parked)
    client.zadd("unacked.leases", dict.fromkeys(tags[1_000:], now - 1))
    client.zadd("unacked_index", dict.fromkeys(tags[1_000:], now - 1))
    driver = bench.desk("elsewhere").driver
    with watched(client) as scripts:
        assert len(driver.reap(limit=1000)) == 50
    assert scripts.are_short()
    assert client.zcard("unacked.parked.K") == 50
