"""Redis: whatever the names and the messages, each goes back to exactly where it came from."""

from __future__ import annotations

import json
from typing import Any
from unittest import mock

import pytest
import redis
from kombu import Exchange, Queue
from kombu.transport.redis import Channel

from celery_lease.brokers.redis import polling
from celery_lease.brokers.redis.standing import Standing
from celery_lease.brokers.redis.watch import Refused
from celery_lease.core.delivery import Answer
from harness.lease_desk import Bench, Desk, bodies
from harness.waiting import eventually

pytestmark = pytest.mark.compat

SEP = Channel.sep


def lose(desk: Desk, message: Any) -> None:
    """Let a lease expire now and reap it."""
    assert desk.extend(message, 0.001) is Answer.HELD
    eventually(lambda: desk.driver.reap(limit=10))


def keys(client: redis.Redis) -> set[str]:
    """Return the names of all keys that are not kombu's tables of bindings."""
    names = {key.decode() for key in client.keys("*")}  # type: ignore[union-attr]
    return {name for name in names if "_kombu.binding" not in name}


def test_every_key_is_the_applications_own(bench: Bench, client: redis.Redis) -> None:
    """Prefix and names of kombu's keys are those of the transport options, ours follow them."""
    bench.options = {
        "global_keyprefix": "{tenant}:",
        "unacked_key": "mine",
        "unacked_index_key": "mine_index",
        "unacked_mutex_key": "mine_mutex",
    }
    bench.publish("a", "b")
    desk = bench.desk(prefetch=1)
    (a,) = desk.receive()
    names = ["mine", "mine.claims", "mine.leases", "mine.token", "mine_index", "q"]
    held = {f"{{tenant}}:{name}" for name in names}
    watched = {f"{{tenant}}:mine.{name}" for name in ("bell.q", "watcher.q")}
    assert held <= keys(client) <= held | watched | {"{tenant}:mine_mutex"}
    assert client.zscore("{tenant}:mine_index", a.claim.tag) == pytest.approx(
        client.time()[0] + 30,  # type: ignore[index]
        abs=5,
    )
    lose(desk, a)
    assert client.lrange("{tenant}:q", -1, -1)[0].startswith(b'{"lease": "000001:000001"')  # type: ignore[index]
    a.ack()
    for message in desk.receive(1):
        assert message.claim.losses == 1
        message.ack()


@pytest.mark.parametrize("steps", [[0, 3, 6, 9], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9], [0, 5]])
def test_a_message_returns_to_the_list_of_its_priority(
    bench: Bench, client: redis.Redis, steps: list[int]
) -> None:
    """By every way back, whatever the steps; and the more urgent is still delivered first."""
    bench.options = {"priority_steps": steps}
    bench.publish("middle", priority=5)
    bench.publish("late", priority=9)
    bench.publish("first", priority=0)
    lists = {key: client.lrange(key, 0, -1) for key in keys(client)}
    assert len(lists) == len({max(step for step in steps if step <= p) for p in (0, 5, 9)})
    desk = bench.desk()
    first, middle, late = desk.receive(3)
    desk.stop()
    assert bodies([first, middle, late]) == ["first", "middle", "late"]
    late.requeue()
    desk.driver.requeue([middle.claim.tag], orderly=True, front=True)
    lose(desk, first)
    assert {key: client.llen(key) for key in lists} == {
        key: len(each) for key, each in lists.items()
    }
    assert bodies(bench.desk().receive(3)) == ["first", "middle", "late"]


@pytest.mark.parametrize(
    "name", ["qu\"ote's", "größe 大きい \N{ROCKET}", "a:b*[c]?{d}", "tab\tnew\nline", "\x06"]
)
def test_a_queue_may_have_any_name(bench: Bench, client: redis.Redis, name: str) -> None:
    """Exchange and routing key may, too: how long they are is counted in bytes."""
    queue = Queue(name, Exchange(f"ex {name}", type="direct"), routing_key=f"key {name}")
    bench.publish("a", queue=queue, priority=6)
    desk = bench.desk(queue)
    (message,) = desk.receive()
    assert message.claim.queue == name
    lose(desk, message)
    assert client.llen(f"{name}{SEP}6") + len(desk.received) == 1
    (again,) = desk.receive()
    assert again.payload == "a"
    assert again.delivery_info["exchange"] == f"ex {name}"
    assert again.delivery_info["routing_key"] == f"key {name}"


def test_a_plain_sweep_can_restore_what_is_stored(bench: Bench) -> None:
    """With no worker of ours left, kombu's own returns an expired lease; counters survive it."""
    queue = Queue("größe", Exchange('e"x', type="direct"), routing_key="schlüssel")
    bench.publish({"ü": "\N{ROCKET}"}, queue=queue)
    desk = bench.desk(queue)
    (message,) = desk.receive()
    desk.stop()
    desk.extend(message, 0.001)
    with bench.channel() as plain:
        plain.qos.restore_by_tag(message.claim.tag)
    assert desk.extend(message, late=True) is Answer.LOST
    assert desk.driver.complete([message.claim.tag]) == [Answer.LOST]
    (again,) = bench.desk(queue).receive()
    assert again.payload == {"ü": "\N{ROCKET}"}
    assert (again.claim.deliveries, again.claim.losses) == (2, 1)
    assert again.headers.get("redelivered") is True


def test_a_topic_message_in_two_queues_is_two_messages(bench: Bench, client: redis.Redis) -> None:
    """Kombu gives both the same delivery tag; each is leased, returned and acknowledged alone."""
    topic = Exchange("events", type="topic")
    one, two = Queue("one", topic, "log.#"), Queue("two", topic, "log.error")
    with bench.channel() as channel:
        one(channel).declare()
        two(channel).declare()
    bench.publish("a", queue=two)
    desk = bench.desk(one, two, prefetch=2)
    messages = {message.claim.queue: message for message in desk.receive(2)}
    assert set(messages) == {"one", "two"}
    messages["one"].ack()
    assert desk.extend(messages["two"]) is Answer.HELD
    lose(desk, messages["two"])
    (again,) = desk.receive()
    assert again.claim.queue == "two"
    again.ack()
    assert desk.holder.answers == [Answer.HELD, Answer.HELD]
    assert desk.receives_nothing()
    assert client.hlen("unacked") == 0


def test_a_broadcast_message_has_no_lease_and_goes_with_its_worker(
    bench: Bench, client: redis.Redis
) -> None:
    """It came out of no list: put into one, it would be run by others, or lie there for ever."""
    news = Exchange("news", type="fanout")
    queues = [Queue(name, news, routing_key="key") for name in ("one", "two")]
    desks = [bench.desk(queue) for queue in queues]
    database = bench.url.rpartition("/")[2]

    def listeners() -> int:
        for desk in desks:
            desk.turn(0.05)
        clients: Any = client.client_list()
        return sum(int(each["psub"]) for each in clients if each["db"] == database)

    eventually(lambda: listeners() == len(desks))
    bench.publish("a", "b", queue=queues[0])
    (first, _), (other, last) = (desk.receive(2) for desk in desks)
    first.requeue()
    other.ack()
    desks[0].close()
    last.reject()
    assert keys(client) == set()


def test_a_large_body_survives_every_way_back(bench: Bench) -> None:
    """A megabyte with everything that is hard in JSON and in Lua patterns."""
    body = {"text": '%s\\"\n\x00ü' * 150_000}
    bench.publish(body)
    desk = bench.desk()
    (message,) = desk.receive()
    lose(desk, message)
    (message,) = desk.receive()
    message.requeue()
    (message,) = desk.receive()
    assert message.payload == body
    assert (message.claim.deliveries, message.claim.losses) == (3, 1)


FOREIGN: dict[str, dict[str, Any]] = {
    "no headers": {"headers": None},
    "no delivery info": {"properties": {"delivery_tag": "t"}},
    "null in it": {"properties": {"delivery_tag": "t", "delivery_info": None}},
    "a lease that is not ours": {"lease": {"a": [1]}},
    "a lease of words": {"lease": "many:few"},
    "a lease of too much": {"lease": "9999999999:9999999999"},
    "a lease of minus": {"lease": "-1:-1"},
    "nothing else": {"headers": {}, "content-type": None, "body": ""},
}


@pytest.mark.parametrize("change", FOREIGN.values(), ids=FOREIGN.keys())
def test_a_message_of_a_foreign_client_is_leased_as_well(
    bench: Bench, client: redis.Redis, change: dict[str, Any]
) -> None:
    """What is missing is not needed, and what only looks like our counters is replaced."""
    plain = {
        "body": "{}",
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "headers": {"task": "t"},
        "properties": {
            "delivery_tag": "t",
            "delivery_info": {"exchange": "", "routing_key": "q"},
        },
    }
    client.lpush("q", json.dumps({**plain, **change}))
    desk = bench.desk()
    (message,) = desk.receive()
    lose(desk, message)
    (again,) = desk.receive()
    assert again.claim.losses >= 1
    assert again.claim.tag.startswith("t#")
    again.requeue()
    (last,) = desk.receive()
    assert last.claim.losses == again.claim.losses
    last.ack()
    assert client.hlen("unacked") == 0


def test_what_is_no_message_is_set_aside_and_the_next_is_delivered(
    bench: Bench, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """Kombu would lose it and end the worker; here it is kept, and one line says where."""
    tags: list[Any] = [[1], None, "\ud800"]
    texts = [b"not json", b"\xff\xfe", b"[]", b'"text"', b"{}", b'{"properties": {}}', b""]
    texts += [
        json.dumps({"body": "", "properties": {"delivery_tag": tag}}).encode() for tag in tags
    ]
    client.lpush("q", *texts)
    bench.publish("good")
    desk = bench.desk()
    assert bodies(desk.receive()) == ["good"]
    assert client.lrange("q.malformed", 0, -1) == texts[::-1]
    assert caplog.text.count("moved to 'q.malformed'") == len(texts)


def test_a_key_that_is_no_list_is_told_once_and_keeps_no_other_queue_from_its_messages(
    bench: Bench, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """Kombu's error for it ends the worker; once the key is gone, messages come again."""
    desk = bench.desk()
    assert desk.receives_nothing(during=0.1)
    bench.publish("first", "second", priority=9)
    client.set(f"q{SEP}3", "no list")
    assert bodies(desk.receive(2)) == ["first", "second"]
    assert desk.receives_nothing(during=1.0)  # more than one look, none of which breaks
    assert caplog.text.count("is no list of messages") == 1
    client.delete(f"q{SEP}3")
    bench.publish("late", priority=3)
    assert bodies(desk.receive()) == ["late"]


def test_a_message_that_is_fetched_is_leased_too(bench: Bench) -> None:
    """``basic_get`` takes no way round the lease."""
    bench.publish("a", priority=3)
    desk = bench.desk("elsewhere")
    message = desk.channel.basic_get("q")
    assert (message.payload, message.claim.queue) == ("a", "q")
    desk.driver.requeue([message.claim.tag], orderly=True, front=True)
    again = desk.channel.basic_get("q")
    assert again.claim.deliveries == 2
    assert desk.channel.basic_get("q") is None


def test_a_message_that_wants_no_lease_takes_kombus_own_way(
    bench: Bench, client: redis.Redis
) -> None:
    """Under the publisher's tag, scored by its delivery, acknowledged and restored by kombu."""
    bench.publish("plain", "leased")
    desk = bench.desk(prefetch=2)
    desk.holder.leases = lambda message: message.payload == "leased"
    plain, leased = desk.receive(2)
    assert not hasattr(plain, "claim")
    index = {tag.decode() for tag in client.zrange("unacked_index", 0, -1)}  # type: ignore[union-attr]
    assert index == {plain.delivery_tag, leased.claim.tag}
    plain.ack()
    assert client.zcard("unacked_index") == 1
    desk.close()
    assert bench.waiting() == 1
    assert client.hlen("unacked") == 0


@pytest.fixture
def long_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The request for the next message waits at the bell until it is rung, if there is none.

    As where the server does not tell of messages.
    """
    monkeypatch.setattr(Standing, "ask", mock.Mock(side_effect=Refused("by this test")))
    monkeypatch.setattr(polling, "SHORTEST", 30)
    monkeypatch.setattr(polling, "LONGEST", 30)


def waits(desk: Desk) -> None:
    """Let a consumer send the request that waits."""
    eventually(lambda: desk.turn(0.01) or desk.channel.qos.receiver.is_waiting, what="it waits")


def ring(client: redis.Redis) -> None:
    """Have the request answered."""
    client.rpush("unacked.bell", "")


@pytest.mark.usefixtures("long_pauses")
def test_a_message_that_arrives_while_its_channel_closes_goes_back(
    bench: Bench, client: redis.Redis
) -> None:
    """Kombu reads the answer that is under way before it closes; nobody will work on that."""
    desk = bench.desk()
    waits(desk)
    bench.publish("a")
    ring(client)
    desk.close()
    assert [claim.queue for claim in desk.holder.claims] == ["q"]
    assert bench.waiting() == 1
    (again,) = bench.desk().receive()
    assert (again.claim.deliveries, again.claim.losses) == (2, 0)


@pytest.mark.usefixtures("long_pauses")
def test_a_message_for_a_consumer_that_was_cancelled_goes_back(
    bench: Bench, client: redis.Redis
) -> None:
    """It was popped for it while it was; kombu requeues it, under its lease."""
    desk = bench.desk("q", "other")
    waits(desk)
    desk.consumer.cancel_by_queue("q")
    bench.publish("a", priority=3)
    ring(client)
    eventually(lambda: desk.turn(0.1) or desk.holder.claims)
    assert desk.received == []
    assert client.llen(f"q{SEP}3") == 1
    assert client.hlen("unacked") == 0


@pytest.mark.parametrize("stops", [True, False])
@pytest.mark.parametrize("leased", [True, False])
@pytest.mark.usefixtures("long_pauses")
def test_a_message_that_comes_as_the_window_shrinks_goes_back_at_once(
    bench: Bench, client: redis.Redis, leased: bool, stops: bool
) -> None:
    """Celery takes a place away when an ETA is due, while the next message is asked for already.

    And a worker that stops takes nothing more; that is no delivery.
    """
    bench.publish("first")
    desk, other = bench.desk(prefetch=2), bench.desk()
    desk.holder.leases = lambda _: leased
    assert bodies(desk.receive()) == ["first"]
    waits(desk)
    if stops:
        desk.holder.backlogged = True
    else:
        desk.consumer.qos(prefetch_count=1)
    bench.publish("second")
    ring(client)
    with mock.patch.object(
        desk.driver, "return_unclaimed", wraps=desk.driver.return_unclaimed
    ) as returned:
        eventually(lambda: desk.turn(0.05) or not desk.channel._in_poll, what="the reply is read")
    returned.assert_called_once()  # it came, and had no place
    assert not desk.received
    (second,) = other.receive(within=3.0)
    assert (second.claim.deliveries, second.claim.losses) == (1, 0)


def test_an_id_that_is_no_text_stops_no_reaper(bench: Bench, client: redis.Redis) -> None:
    """Half a surrogate pair goes through JSON, but a Lua script cannot read it."""
    bench.publish("odd")
    desk = bench.desk()
    desk.holder.about = {"id": "\ud800\u0000ü"}
    (message,) = desk.receive()
    lose(desk, message)
    (again,) = desk.receive()
    again.requeue()
    (last,) = desk.receive()
    assert (last.claim.deliveries, last.claim.losses) == (3, 1)
    last.ack()
    assert desk.holder.answers == [Answer.HELD, Answer.HELD]
    assert client.hlen("unacked") == 0


def test_a_message_that_was_not_claimed_takes_no_place_in_the_window(bench: Bench) -> None:
    """Nobody sees it, the next one is delivered, and it can be returned at any time."""
    desk = bench.desk(prefetch=1)
    claim, failed = desk.driver.claim, []

    def fail_once(delivery: Any, *args: Any) -> Any:
        if not failed:
            failed.append(delivery)
            return None
        return claim(delivery, *args)

    desk.driver.claim = fail_once
    bench.publish("a", "b")
    assert bodies(desk.receive()) == ["b"]
    assert desk.holder.not_claimed == failed
    assert desk.receives_nothing(0.3)
    assert desk.driver.return_unclaimed(failed) == [Answer.HELD]
    assert bench.waiting() == 1
    assert len(desk.channel.qos._delivered) == 1
    (again,) = bench.desk().receive()
    assert (again.payload, again.claim.deliveries, again.claim.losses) == ("a", 1, 0)


@pytest.mark.parametrize("kind", ["", "_index", ".leases", ".claims", ".token"])
def test_a_message_that_cannot_be_recorded_stays_at_its_place(
    bench: Bench, client: redis.Redis, kind: str
) -> None:
    """A key of ours that another program has overwritten; the message is taken later."""
    head = {"headers": {"task": "t", "id": "1"}, "properties": {"delivery_tag": "d"}}
    texts = [json.dumps({"body": number, **head}).encode() for number in range(2)]
    client.lpush("q", *texts)
    client.lpush(f"unacked{kind}", "of another type")
    leased = ['"w"', "", "\nt\n30.0 0 \n"]
    take = bench.desk().driver.arrive("tag", 5.0, {"q": "q"}, by_name=False, claims=leased)
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        client.execute_command(*take)
    assert client.lrange("q", 0, -1) == texts[::-1]
    client.delete(f"unacked{kind}")
    reply: Any = client.execute_command(*take)
    assert reply[:2] == [b"q", texts[0]]
    assert client.lrange("q", 0, -1) == texts[:0:-1]
