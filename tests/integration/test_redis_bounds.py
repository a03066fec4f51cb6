"""Redis: what is kept has an end, and what is done at once has a limit."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest
import redis

from celery_lease.brokers.checkpoints import FENCE_KEPT
from celery_lease.brokers.redis import driver as redis_driver
from celery_lease.brokers.redis.checkpoint import RedisCheckpoints
from celery_lease.brokers.redis.sweeps import ROUNDS
from celery_lease.core.delivery import Answer, Renewal

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.lease_desk import Bench, Desk


pytestmark = pytest.mark.compat

#: Losses kept of one message, seconds for which they are, and the longest rest after a loss.
LOSSES, KEPT, LONGEST_REST = 20, 7 * 86400, 60
#: Seconds that a busy machine may take between two commands.
SLOW = 30


def arrive(client: Any, desk: Desk, number: int, *queues: str) -> Any:
    """Take the next message of some queues, as a consumer does that waits."""
    lists = {queue: queue for queue in queues or ("q",)}
    return client.execute_command(*desk.driver.arrive(f"arrival#{number}", 5, lists, by_name=False))


def expire(desk: Desk, *messages: Any) -> None:
    """Let leases end now."""
    desk.stop()
    for message in messages:
        assert desk.extend(message, 0.001) is Answer.HELD
    time.sleep(0.05)


def test_one_ring_is_enough_however_many_messages_are_left(bench: Bench, client: Any) -> None:
    """Nobody waits at the bell of busy workers, and it must not grow by an entry a message."""
    bench.publish(*range(5))
    desk = bench.desk()
    for number in range(4):
        assert arrive(client, desk, number)
    assert client.llen("unacked.bell") == 1


def test_of_a_message_the_last_losses_are_kept_and_for_a_week(bench: Bench, client: Any) -> None:
    """A message that is lost for ever must not fill the server, nor one that is gone."""
    bench.publish("a")
    desk = bench.desk()
    (message,) = desk.receive()
    history = f"unacked.history.{message.claim.tag.split('#')[0]}"
    client.rpush(history, *(json.dumps({"reason": str(number)}) for number in range(LOSSES + 5)))
    expire(desk, message)
    assert len(desk.driver.reap(limit=1)) == 1
    kept = [json.loads(text)["reason"] for text in client.lrange(history, 0, -1)]
    assert kept == [*(str(number) for number in range(6, LOSSES + 5)), "expired"]
    assert KEPT - SLOW < client.ttl(history) <= KEPT


def test_refusals_are_forgotten_after_an_hour_and_not_before(bench: Bench, client: Any) -> None:
    """By then no claim is still on its way."""
    now = client.time()[0]
    client.zadd("unacked.refusals", {"old": now - 3601, "young": now - 3600 + SLOW})
    assert bench.desk("elsewhere").driver.reap(limit=1) == []
    assert client.zrange("unacked.refusals", 0, -1) == [b"young"]


def test_one_sweep_returns_no_more_than_it_may(bench: Bench, client: Any) -> None:
    """The rest is for the next one; the oldest go first."""
    bench.publish(*range(5))
    desk = bench.desk()
    messages = desk.receive(5)
    expire(desk, *messages)
    assert [len(desk.driver.reap(limit=2)) for _ in range(4)] == [2, 2, 1, 0]
    assert client.llen("q") == 5


def test_a_sweep_ends_where_nothing_can_be_returned(
    bench: Bench, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What could not go back comes on top of the limit, but not for ever."""
    bench.publish("a")
    desk = bench.desk()
    expire(desk, *desk.receive())
    sweeps, rounds = desk.driver._sweeps, []

    def refuses(tags: list[bytes]) -> list[Any]:
        rounds.append(tags)
        assert len(rounds) <= ROUNDS
        return []

    monkeypatch.setattr(sweeps, "_return_leases", refuses)
    assert list(sweeps.leases(1, desk.driver._plain)) == []
    assert len(rounds) == ROUNDS
    assert client.llen("q") == 0


def test_what_cannot_go_back_is_out_of_the_way_of_plain_sweeps_too(
    bench: Bench, client: Any
) -> None:
    """Kombu's own would meet the same key at each look, and end its worker with that error."""
    bench.publish("a")
    desk = bench.desk()
    (message,) = desk.receive()
    expire(desk, message)
    client.set("q", "no list")
    (swept,) = desk.driver.reap(limit=1)
    assert swept.error
    now = client.time()[0]
    for key in ("unacked_index", "unacked.leases"):
        assert now + 60 - SLOW < client.zscore(key, message.claim.tag) <= now + 61


def test_a_message_of_the_second_list_is_recorded_under_its_own_queue(
    bench: Bench, client: Any
) -> None:
    """A plain sweep that returns it, and who reads the records, goes by that name."""
    bench.publish("a", queue="two")
    desk = bench.desk()
    key, _ = arrive(client, desk, 1, "one", "two", "three")
    assert key == b"two"
    record = json.loads(client.hget("unacked.claims", "arrival#1"))
    assert (record["queue"], record["key"]) == ("two", "two")
    assert json.loads(client.hget("unacked", "arrival#1"))[1:] == ["", "two"]
    with bench.channel() as plain:
        plain.qos.restore_by_tag("arrival#1")
    assert client.llen("two") == 1


def test_of_equal_letters_one_is_moved_and_it_is_the_oldest(bench: Bench, client: Any) -> None:
    """Two may have the same text, as after a dead letter was copied by hand."""
    client.lpush("q.dead", b"A", b"B", b"A")
    client.sadd("unacked.dead", "q.dead")
    assert bench.desk().driver.dead_letters().move("q.dead", "q.dead", "q", b"A", "sent back")
    assert client.lrange("q.dead", 0, -1) == [b"A", b"B"]
    assert client.lrange("q", 0, -1) == [b"sent back"]


def test_no_message_rests_for_longer_than_a_minute(bench: Bench, client: Any) -> None:
    """Where many losses are allowed, twice as long each time would soon be days."""
    bench.publish("a")
    text = client.lindex("q", 0)
    client.lset("q", 0, b'{"lease": "000030:000030", ' + text[1:])
    desk = bench.desk()
    (message,) = desk.receive()
    desk.stop()
    assert desk.driver.requeue([message.claim.tag], orderly=False) == [Answer.HELD]
    ((_, ends),) = client.zrange("unacked_index", 0, -1, withscores=True)
    now = client.time()[0]
    assert now + LONGEST_REST - SLOW < ends <= now + LONGEST_REST + 1


def test_a_message_for_a_consumer_that_acknowledges_nothing_is_not_kept(
    bench: Bench, client: Any
) -> None:
    """It is gone as it is delivered; its arrival would give it to the next one again."""
    bench.publish("a")
    desk = bench.desk()
    desk.consumer.no_ack = True
    desk.receive()
    assert (client.hlen("unacked"), client.zcard("unacked_index")) == (0, 0)


def test_a_checkpoint_that_is_saved_for_good_outlives_the_fence_before_it(
    bench: Bench, client: Any
) -> None:
    """The fence of a former success lapses; what is saved after it does not lapse with it."""
    store = RedisCheckpoints(
        redis.ConnectionPool.from_url(bench.url),
        name="the broker",
        key=lambda task_id: f"checkpoint.{task_id}",
        expires=0,
        failure_expires=0,
    )
    assert store.save("t", 1, "1")
    assert client.ttl("checkpoint.t") == -1
    assert store.forget("t", 1)
    assert 0 < client.ttl("checkpoint.t") <= FENCE_KEPT
    assert store.save("t", 2, "2")
    assert client.ttl("checkpoint.t") == -1


def test_after_a_silent_server_no_further_batch_is_asked_for(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each would wait for as long; the next pass asks again."""
    asked = []

    def silent(*args: Any) -> Any:
        asked.append(args)
        raise redis.TimeoutError("Timeout reading from socket")

    driver = bench.desk().driver
    monkeypatch.setattr(driver.server, "run_all", silent)
    renewals = [Renewal(str(number), 30.0) for number in range(2 * redis_driver.BATCH + 1)]
    assert driver.extend(renewals) == [Answer.UNKNOWN] * len(renewals)
    assert len(asked) == 1


def became_replica(version: int) -> redis.ResponseError:
    """Return what the client raises where a script meets a server that may not write."""
    if version >= 7:
        return redis.ReadOnlyError("You can't write against a read only replica.")
    return redis.ResponseError(
        "Error running script (call to f_2c): @user_script:1: @user_script: 1: "
        "-READONLY You can't write against a read only replica."
    )


@pytest.mark.parametrize("version", [6, 7])
@pytest.mark.parametrize("way", ["call", "call_within"])
def test_nothing_is_kept_of_a_server_that_became_a_replica(
    bench: Bench, way: str, version: int
) -> None:
    """Behind its name there may be another one by now, which an open connection never reaches."""
    lines = bench.desk().driver.server._lines
    options = {"timeout": 5.0} if way == "call_within" else {}
    run: Callable[..., Any] = getattr(lines, way)

    def fail(_: redis.Redis) -> None:
        raise became_replica(version)

    first = run(lambda client: client.client_id(), **options)
    assert run(lambda client: client.client_id(), **options) == first
    with pytest.raises(redis.ResponseError):
        run(fail, **options)
    assert run(lambda client: client.client_id(), **options) != first
