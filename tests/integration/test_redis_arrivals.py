"""Redis: how consumers with leases wait for messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from celery_lease.brokers.redis import arrivals
from harness.lease_desk import Bench, Desk, bodies
from harness.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    import redis

    from harness.brokers import RedisServer

pytestmark = pytest.mark.compat

#: Seconds of a pause far beyond what a test waits for.
LONG = 60.0


@pytest.fixture
def bench(own_valkey: RedisServer) -> Iterator[Bench]:
    """Consumers on a server of this test alone."""
    bench = Bench(own_valkey.url())
    yield bench
    with own_valkey.client() as client:
        client.config_set("maxmemory", 0)
        for kind in ("BLMOVE", "BLPOP"):  # or closing would wait for the end of their pauses
            for waiting in waits(client, kind):
                client.client_unblock(waiting)
    bench.close()


@pytest.fixture
def client(own_valkey: RedisServer) -> Iterator[redis.Redis]:
    """The server, to look at and to set up."""
    with own_valkey.client() as client:
        yield client


def waits(client: redis.Redis, command: str) -> list[int]:
    """Return the connections that wait by a command."""
    return [int(each["id"]) for each in client.client_list() if each["cmd"] == command.lower()]


def idle(bench: Bench, count: int, *, priority_steps: tuple[int, ...] = (0,)) -> list[Desk]:
    """Return consumers that have found their queue empty some times."""
    desks = [
        bench.desk(prefetch=1, options={"priority_steps": list(priority_steps)})
        for _ in range(count)
    ]
    for _ in range(3):
        for desk in desks:
            desk.turn(0.1)
    return desks


def watchers(client: redis.Redis) -> list[str]:
    """Return who watches a list now or did so a moment ago, each as often as it has lists."""
    return [value.decode().split()[1] for value in client.hvals("unacked.watches")]  # type: ignore[union-attr]


def asker(desk: Desk) -> str:
    """Return a consumer's name among those who watch."""
    return str(desk.channel._brpop_start.__self__._asker)


def test_a_message_wakes_an_idle_consumer_as_with_brpop(
    bench: Bench, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not lie there until the end of a pause, and wakes one consumer of three."""
    monkeypatch.setattr(arrivals, "SHORTEST", LONG)
    monkeypatch.setattr(arrivals, "LONGEST", LONG)
    desks = idle(bench, 3)
    assert (len(waits(client, "BLMOVE")), len(waits(client, "BLPOP"))) == (1, 2)
    bench.publish("a")
    (desk,) = eventually(lambda: [desk for desk in desks if desk.turn(0.1) or desk.received])
    assert bodies(desk.receive()) == ["a"]
    assert len(waits(client, "BLPOP")) == 2


def test_another_consumer_watches_when_the_watcher_is_busy_or_gone(
    bench: Bench, client: redis.Redis
) -> None:
    """Its prefetch window is full, or it looks no more: the next that looks takes its place."""
    desks = idle(bench, 3)

    def watching() -> list[Desk]:
        for desk in desks:
            desk.turn(0.02)
        return [desk for desk in desks if asker(desk) in watchers(client)]

    eventually(watching, what="one watches")
    bench.publish("a")
    (busy,) = eventually(lambda: [desk for desk in desks if desk.turn(0.02) or desk.received])
    desks.remove(busy)
    (gone,) = eventually(watching, what="another one watches")
    desks.remove(gone)  # has not said so
    assert eventually(watching, what="the last one watches") == desks


def test_each_of_several_lists_has_a_watcher(bench: Bench, client: redis.Redis) -> None:
    """Four priorities, three idle consumers: three lists wake somebody at once."""
    desks = idle(bench, 3, priority_steps=(0, 3, 6, 9))

    def all_watch() -> bool:
        for desk in desks:
            desk.turn(0.02)
        return set(watchers(client)) == set(map(asker, desks))

    eventually(all_watch)
    eventually(lambda: not client.exists("unacked.watches"), what="nothing is left of it")


def test_a_full_server_is_waited_at_in_another_way(
    bench: Bench, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It refuses to watch, which might need memory; what it has is taken, with pauses as ever."""
    (desk,) = idle(bench, 1)
    bench.publish("a")
    client.config_set("maxmemory", 1)
    assert bodies(desk.receive()) == ["a"]
    monkeypatch.setattr(arrivals, "SHORTEST", LONG)
    monkeypatch.setattr(arrivals, "LONGEST", LONG)
    desk.consumer.qos(prefetch_count=0)
    eventually(lambda: desk.turn(0.1) or waits(client, "BLPOP"))
