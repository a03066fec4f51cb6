"""Redis: first deliveries are claimed as they arrive, in the same call, where one is expected."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from celery_lease.core.delivery import Answer
from celery_lease.core.keys import Exclusive, OnBusy, Verdict
from harness.waiting import eventually

if TYPE_CHECKING:
    import redis

    from harness.brokers import RedisServer
    from harness.lease_desk import Bench, Desk

pytestmark = pytest.mark.compat

WORKER = "w@host:1:0a"


@pytest.fixture
def server(both_servers: RedisServer) -> RedisServer:
    """Each kind of server."""
    return both_servers


def publish(bench: Bench, *ids: str, **headers: Any) -> None:
    """Send a message of one task for each id."""
    for each in ids:
        bench.publish({"n": each}, headers={"task": "film", "id": each, **headers})


def worker(bench: Bench, **settings: Any) -> Desk:
    """Return a consumer that leases as a worker does."""
    desk = bench.desk(**settings)
    desk.holder.waits = True
    terms = desk.holder.terms

    def of_task(message: Any) -> Any:
        about = {"task": "film", "id": message.headers.get("id", ""), "worker": WORKER}
        desk.holder.about = about
        return terms(message)

    desk.holder.terms = of_task  # type: ignore[method-assign]
    return desk


def keyed_worker(bench: Bench, exclusive: Exclusive, **settings: Any) -> Desk:
    """Return such a consumer whose tasks all need an exclusive key."""
    desk = worker(bench, **settings)
    terms = desk.holder.terms

    def keyed(message: Any) -> Any:
        return replace(terms(message), exclusive=exclusive)

    desk.holder.terms = keyed  # type: ignore[method-assign]
    return desk


def claimed(desk: Desk) -> list[bool]:
    """Return of each message, in order, whether it was claimed as it arrived."""
    return [each.tag.startswith("arrival#") for each in desk.holder.claims]


def record(client: redis.Redis, message: Any) -> dict[str, Any]:
    """Return the record of a message's claim."""
    text: Any = client.hget("unacked.claims", message.claim.tag)
    fields: dict[str, Any] = json.loads(text)
    return fields


def test_a_channel_claims_in_the_call_that_takes_the_message(
    bench: Bench, client: redis.Redis
) -> None:
    """The first message by a call of its own, the next ones not; all records have the same fields.

    An idle channel's next message is claimed so, too, where the server has notified it.
    """
    publish(bench, "a", "b", "c")
    desk = worker(bench, prefetch=3)
    messages = desk.receive(3)
    assert claimed(desk) == [False, True, True]
    first, second, third = (record(client, each) for each in messages)
    changing = {"token", "since", "id", "cut"}
    assert {**first, **dict.fromkeys(changing)} == {
        key: value
        for key, value in {**second, **dict.fromkeys(changing)}.items()
        if key not in {"raw", "name"}
    }
    assert [each["id"] for each in (first, second, third)] == ["a", "b", "c"]
    assert first["token"] < second["token"] < third["token"]
    assert [each.claim.token for each in messages] == [
        each["token"] for each in (first, second, third)
    ]
    assert client.zmscore("unacked_index", [each.claim.tag for each in messages]) == pytest.approx(
        [client.time()[0] + 30] * 3,  # type: ignore[index]
        abs=5,
    )
    for each in messages:
        each.ack()
    assert desk.holder.answers == [Answer.HELD] * 3
    assert client.hlen("unacked") == client.hlen("unacked.claims") == 0
    assert desk.receives_nothing(during=0.3)
    publish(bench, "d")
    desk.receive(1)
    assert claimed(desk)[3:] == [True]


def test_a_free_key_is_no_reason_to_claim_again(bench: Bench, client: redis.Redis) -> None:
    """An expiry, another key and another limit are; the records have the same fields."""
    desk, free = worker(bench, prefetch=9), Exclusive(key="k", limit=1)
    terms, wanted = desk.holder.terms, {"a": free, "b": free, "c": replace(free, expires=9e9)}
    wanted |= {"d": replace(free, key="other"), "e": replace(free, limit=2)}

    def keyed(message: Any) -> Any:
        return replace(terms(message), exclusive=wanted[message.headers["id"]])

    desk.holder.terms = keyed  # type: ignore[method-assign]
    publish(bench, *"abcde", lease_key="k")
    messages = desk.receive(5)
    assert claimed(desk) == [False, True, False, False, False]
    first, second = (record(client, each) for each in messages[:2])
    assert first["exclusive"] == second["exclusive"]
    assert desk.driver.take_key(messages[1].claim.tag).verdict is Verdict.HELD
    assert desk.driver.take_key(messages[0].claim.tag).verdict is Verdict.PARKED
    desk.driver.complete([messages[1].claim.tag])
    assert record(client, messages[2])["exclusive"]["expires"] == 9e9
    assert client.zcard("unacked.holders.k") == 0


@pytest.mark.parametrize("limit", [1, 2])
def test_a_key_is_free_until_as_many_hold_it_as_may(
    bench: Bench, client: redis.Redis, limit: int
) -> None:
    """And the record has the task's own limit, and what the task does if its key is busy."""
    desk = keyed_worker(bench, Exclusive(key="k", limit=limit, on_busy=OnBusy.DROP), prefetch=9)
    publish(bench, "a", lease_key="other")
    desk.receive(1)
    for number in range(limit + 1):
        publish(bench, f"b{number}", lease_key="k")
        (message,) = desk.receive(1)
        assert claimed(desk)[-1] is (number < limit)
        exclusive = record(client, message)["exclusive"]
        assert (exclusive["limit"], exclusive["busy"]) == (limit, "drop")
        desk.driver.take_key(message.claim.tag)


KEYED = {"lease_key": "k", "expires": None, "argsrepr": "()"}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"lease_key": "k"', '"lease_kez": "k"'),
        ('"lease_key": "k"', r'"lease_key": "k\"k"'),
        ('"priority": 0', '"priority": 10'),
        ('"priority": 0', '"urgency": 0'),
        ('"expires": null', '"expires": "2099-01-01T00:00:00+00:00"'),
        ('"task": "film"', '"task": "book"'),
        ('"id": "b"', r'"id": "b\"b"'),
        ('"id": "b"', '"ib": "b"'),
        ('"delivery_tag": "', r'"delivery_tag": "\"'),
        ('"()"', r'"\ud83c\udfac"'),
        ('"()"', r'"\udbff\udfff"'),
        ('"()"', r'"\uDBFF\uDFFF"'),
        ('"body"', '"lease": "000001:000001", "body"'),
    ],
)
def test_what_the_script_cannot_tell_of_a_message_the_worker_does(
    bench: Bench, client: redis.Redis, old: str, new: str
) -> None:
    """No claim is made as the message arrives, and none of another one's key or id."""
    desk = keyed_worker(bench, Exclusive(key="k", limit=1), prefetch=2)
    publish(bench, "a", "b", **KEYED)
    text: Any = client.lpop("q")
    assert text.count(old.encode()) == 1
    client.lpush("q", text.replace(old.encode(), new.encode(), 1))
    desk.receive(1)
    desk.connection.transport.cycle.on_poll_start()  # asks for the next one, and does not read it
    eventually(lambda: client.llen("q") == 0)
    records: Any = client.hvals("unacked.claims")
    assert [json.loads(each).get("arriving") for each in records].count(True) == 1


def test_a_message_arrives_though_the_holders_of_its_key_are_no_set(
    bench: Bench, client: redis.Redis
) -> None:
    """It is left to the claim, and no error for the channel."""
    desk = keyed_worker(bench, Exclusive(key="k", limit=1), prefetch=2)
    publish(bench, "a", "b", **KEYED)
    desk.receive(1)
    client.set("unacked.holders.k", "x")
    desk.connection.transport.cycle.on_poll_start()
    eventually(lambda: client.llen("q") == 0)


@pytest.mark.parametrize("orderly", [True, False])
def test_what_goes_back_is_as_if_it_had_been_claimed_by_itself(
    bench: Bench, client: redis.Redis, orderly: bool
) -> None:
    """The flags of a redelivery, the counters, and the history under the publisher's tag."""
    publish(bench, "a", "b", argsrepr="(1, '\"headers\": {')")
    desk = worker(bench, prefetch=2)
    a, b = desk.receive(2)
    assert claimed(desk) == [False, True]
    tags = [each.claim.tag for each in (a, b)]
    desk.driver.begin(tags)
    assert desk.driver.requeue(tags[::-1], orderly=orderly) == [Answer.HELD] * 2
    texts: Any = client.lrange("q", 0, -1)
    second, first = map(json.loads, texts)
    for each in (first, second):
        assert each["lease"] == ("000001:000000" if orderly else "000001:000001")
        assert each["headers"]["redelivered"] is True
        assert each["properties"]["delivery_info"]["redelivered"] is True
    name = second["properties"]["delivery_tag"]
    assert client.llen(f"unacked.history.{name}") == (0 if orderly else 1)
    changing = {"id", "body", "correlation_id", "delivery_tag"}
    for part in ("headers", "properties"):
        first[part] |= dict.fromkeys(changing & first[part].keys())
        second[part] |= dict.fromkeys(changing & second[part].keys())
    assert first | {"body": ""} == second | {"body": ""}


def test_a_dead_letter_of_a_first_delivery_has_the_whole_message(
    bench: Bench, client: redis.Redis
) -> None:
    """Its text was never written by a worker."""
    publish(bench, "a", "b")
    desk = worker(bench, prefetch=2)
    _, b = desk.receive(2)
    assert desk.driver.dead_letter(b.claim.tag, "q.dead") is Answer.HELD
    (letter,) = client.lrange("q.dead", 0, -1)  # type: ignore[misc]
    fields = json.loads(letter)
    assert fields["lease"] == "000000:000000"
    assert fields["dead"]["deliveries"] == 1
    assert fields["headers"]["id"] == "b"
    assert fields["headers"]["redelivered"] is True


@pytest.mark.parametrize(
    "headers",
    [
        {"argsrepr": '"task": "other", "id": "x"'},
        {"stamps": {"task": "other", "id": "x", "delivery_tag": "y"}},
        {"argsrepr": "\U0001f3ac"},
    ],
    ids=["quoted", "nested", "emoji"],
)
def test_whatever_the_headers_say_the_claim_is_of_this_message(
    bench: Bench, client: redis.Redis, headers: dict[str, Any]
) -> None:
    """The script searches the text for what it needs; the worker compares, and claims again."""
    for each in ("a", "b", "c"):
        bench.publish({"n": each}, headers={**headers, "task": "film", "id": each})
    desk = worker(bench, prefetch=3)
    messages = desk.receive(3)
    assert [record(client, each)["id"] for each in messages] == ["a", "b", "c"]
    assert client.hlen("unacked") == client.hlen("unacked.claims") == client.zcard("unacked.leases")
    assert client.hlen("unacked") == 3
    for each in messages:
        each.ack()
    assert desk.holder.answers == [Answer.HELD] * 3
    assert client.hlen("unacked") == 0


def test_a_message_with_a_lease_of_its_own_length_gets_that(
    bench: Bench, client: redis.Redis
) -> None:
    """Not the one that the task had before; and a plain one in between gets none."""
    publish(bench, "a", "b", "plain", "c")
    desk = worker(bench, prefetch=4)
    terms = desk.holder.terms

    def of_message(message: Any) -> Any:
        desk.holder.seconds = 100.0 if message.headers["id"] == "b" else 30.0
        return None if message.headers["id"] == "plain" else terms(message)

    desk.holder.terms = of_message  # type: ignore[method-assign]
    a, b, plain, c = desk.receive(4)
    now = client.time()[0]  # type: ignore[index]
    ends = client.zmscore("unacked_index", [each.claim.tag for each in (a, b, c)])
    assert ends == pytest.approx([now + 30, now + 100, now + 30], abs=5)
    assert client.hexists("unacked", plain.delivery_tag)
    assert client.hlen("unacked.claims") == 3
    for each in (a, b, plain, c):
        each.ack()
    assert client.hlen("unacked") == client.zcard("unacked_index") == 0


def test_tasks_are_told_apart_by_their_whole_names(bench: Bench) -> None:
    """One of two lines is claimed by a call of its own; its last line is the name of another."""
    names = ["book", "film\nbook", "film\nbook", "boo", "ook", "film", "book", "film"]
    for each in names:
        bench.publish({}, headers={"task": each, "id": each})
    desk = bench.desk(prefetch=len(names))
    desk.holder.waits, terms = True, desk.holder.terms

    def of_task(message: Any) -> Any:
        desk.holder.seconds = 10.0 + len(message.headers["task"])
        desk.holder.about = {**{n: message.headers[n] for n in ("task", "id")}, "worker": WORKER}
        return terms(message)

    desk.holder.terms = of_task  # type: ignore[method-assign]
    messages = desk.receive(len(names))
    assert claimed(desk) == [False] * 6 + [True] * 2
    assert [each.claim.seconds for each in messages] == [10.0 + len(each) for each in names]


def test_a_message_whose_reply_was_lost_goes_back_without_waiting_for_its_lease(
    bench: Bench, client: redis.Redis
) -> None:
    """The connection ends between the script and its answer: the channel gives the message back."""
    publish(bench, "a", "b")
    desk = worker(bench, prefetch=2, seconds=300.0)
    desk.receive(1)
    desk.connection.transport.cycle.on_poll_start()  # asks for the next one
    eventually(lambda: client.llen("q") == 0)
    desk.channel.client.connection.disconnect()  # with the reply in its buffer
    desk.connection.collect()
    (unheard,) = desk.holder.not_claimed
    assert desk.driver.return_unclaimed([unheard]) == [Answer.HELD]
    texts: Any = client.lrange("q", 0, -1)
    a, b = map(json.loads, texts)
    assert [each["headers"]["id"] for each in (a, b)] == ["a", "b"]  # one at the back, one in front
    assert b["lease"] == "000001:000000"
    assert desk.driver.return_unclaimed([unheard]) == [Answer.HELD]
    assert client.llen("q") == 2
    assert client.hlen("unacked") == 0


def plain_worker(bench: Bench, **settings: Any) -> Desk:
    """Return a consumer that knows after its first message that films have no leases."""
    desk = bench.desk(**settings)
    desk.holder.leases = lambda _: False
    desk.holder.plain = "film"
    return desk


def with_one_of_two(bench: Bench) -> Desk:
    """Return such a consumer that has its first message; another one waits."""
    publish(bench, "a", "b")
    desk = plain_worker(bench, prefetch=2)
    desk.receive(1)
    return desk


def asked(desk: Desk, client: redis.Redis) -> None:
    """Let a consumer ask for the next message, which it does not read."""
    desk.connection.transport.cycle.on_poll_start()
    eventually(lambda: client.llen("q") == 0)


@pytest.mark.parametrize("end", ["ack", "reject", "requeue"])
def test_a_message_without_a_lease_is_recorded_in_the_call_that_takes_it(
    bench: Bench, client: redis.Redis, end: str
) -> None:
    """As kombu does it, but under the arrival's tag; kombu's own calls settle it."""
    publish(bench, "a", "b")
    desk = plain_worker(bench, prefetch=2)
    a, b = desk.receive(2)
    assert [each.delivery_tag.startswith("arrival#") for each in (a, b)] == [False, True]
    assert set(client.zrange("unacked_index", 0, -1)) == {
        each.delivery_tag.encode() for each in (a, b)
    }
    assert client.zscore("unacked_index", b.delivery_tag) == pytest.approx(
        client.time()[0],  # type: ignore[index]
        abs=5,
    )
    assert client.hlen("unacked.claims") == client.zcard("unacked.leases") == 0
    for each in (a, b):
        getattr(each, end)()
    assert client.hlen("unacked") == client.zcard("unacked_index") == 0
    assert client.llen("q") == (2 if end == "requeue" else 0)


def test_a_channel_that_closes_returns_its_messages_without_leases(
    bench: Bench, client: redis.Redis
) -> None:
    publish(bench, "a", "b")
    desk = plain_worker(bench, prefetch=2)
    desk.receive(2)
    desk.channel.close()
    assert client.llen("q") == 2
    assert client.hlen("unacked") == client.zcard("unacked_index") == 0


def test_a_message_that_was_recorded_without_a_lease_can_get_one(
    bench: Bench, client: redis.Redis
) -> None:
    """The worker decides; the script has only guessed by the name."""
    desk = with_one_of_two(bench)
    asked(desk, client)
    desk.holder.leases = lambda _: True
    (b,) = desk.receive(1)
    assert client.hkeys("unacked.claims") == [b.claim.tag.encode()]
    assert client.hlen("unacked") == 2
    b.ack()
    assert client.hlen("unacked") == 1


def test_a_message_without_a_lease_and_without_room_goes_back_as_it_came(
    bench: Bench, client: redis.Redis
) -> None:
    desk = with_one_of_two(bench)
    before = client.lrange("q", 0, -1)
    asked(desk, client)
    desk.holder.backlogged = True
    assert desk.receives_nothing()
    assert client.lrange("q", 0, -1) == before
    assert client.hlen("unacked") == 1


def test_a_message_without_a_lease_whose_reply_was_lost_is_returned_by_the_next_sweep(
    bench: Bench, client: redis.Redis
) -> None:
    """It does not wait for a visibility timeout: the channel says that it never got it."""
    desk = with_one_of_two(bench)
    asked(desk, client)
    assert desk.driver.reap(limit=10) == []
    desk.channel.client.connection.disconnect()  # with the reply in its buffer
    desk.connection.collect()
    (unheard,) = desk.holder.not_claimed
    assert client.llen("q") == 1  # the first, which the channel has restored
    assert desk.driver.return_unclaimed([unheard]) == [Answer.HELD]
    (reaped,) = desk.driver.reap(limit=10)
    assert (reaped.queue, reaped.leased) == ("q", False)
    assert 0 <= reaped.late < 5
    assert client.llen("q") == 2
    assert client.hlen("unacked") == client.zcard("unacked_index") == 0


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"task": "film"', '"task": "book"'),
        ('"task": "film"', '"task": "film2"'),
        ('"task": "film"', '"tasks": "film"'),
        ('"headers": {', '"headers":{'),
        ('"body"', '"lease": "000001:000001", "body"'),
    ],
)
def test_only_first_deliveries_of_a_known_task_are_recorded_without_a_lease(
    bench: Bench, client: redis.Redis, old: str, new: str
) -> None:
    publish(bench, "a", "b")
    text: Any = client.lpop("q")
    assert text.count(old.encode()) == 1
    client.lpush("q", text.replace(old.encode(), new.encode(), 1))
    desk = plain_worker(bench, prefetch=2)
    desk.receive(1)
    asked(desk, client)
    (arriving,) = client.hvals("unacked.claims")
    assert json.loads(arriving)["arriving"] is True
