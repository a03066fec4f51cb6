"""Scripts that fail midway: whatever the server refuses, no message is lost and none is doubled.

Each script is run while one key is of another type, one command is forbidden, or memory is short.
It may say so, or do without; but then each message is in its queue, recorded as held, or dead, and
in one of these only.
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
import redis

from celery_lease.brokers.redis.arrivals import Arrived
from celery_lease.core.delivery import Renewal, Terms
from celery_lease.core.keys import Exclusive, OnBusy, Verdict
from model.lease_model import START
from model.stage import TASK, ScriptError, Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

KEYS = [
    "q",
    "q.dead",
    "unacked",
    "unacked_index",
    *(f"unacked.{each}" for each in ("leases", "claims", "token", "refusals", "bell", "dead")),
    "unacked.history.m",
    *("unacked.parked", "unacked.parked.k", "unacked.holders.k"),
]
COMMANDS = (
    "zadd zrem zscore hset hdel hget rpush lpush ltrim lpop lrem lindex set get sadd srem del "
    "expire zrange hmget zcard hincrby"
)
MOVES: dict[str, Callable[[Stage], object]] = {}


def move(function: Callable[[Stage], Callable[[], object]]) -> Any:
    """Register what prepares one way of a message, and returns the call that is to fail."""
    MOVES[function.__name__] = function
    return function


def held(stage: Stage, *, losses: int = 0, seconds: float = 10) -> str:
    """Publish a message and take it under a lease, after it was lost some times."""
    stage.publish("m")
    for nonce in range(losses + 1):
        arrived = stage.arrive(nonce)
        assert arrived is not None
        delivery = arrived[0]
        assert stage.drivers[0].claim(delivery, Terms(seconds=seconds), 0.0) is not None
        if nonce < losses:
            stage.drivers[0].requeue([delivery.tag], orderly=False)
    return delivery.tag


def keyed(stage: Stage, nonce: int, busy: OnBusy = OnBusy.WAIT, **more: Any) -> Any:
    """Take the next message of a task with a key; return what the driver says."""
    (delivery, _) = stage.arrive(nonce) or pytest.fail("no message")
    message = delivery.tag.partition("#")[0]
    exclusive = Exclusive(key="k", on_busy=busy, decides=more.pop("decides", True))
    terms = Terms(seconds=more.pop("seconds", 10), about={"id": message}, exclusive=exclusive)
    return stage.drivers[0].claim(delivery, terms, 0.0)


def holder(stage: Stage, **more: Any) -> str:
    """Let the task of another message hold the key."""
    stage.publish("other")
    tag = str(keyed(stage, 98, **more).tag)
    assert stage.drivers[0].take_key(tag).verdict is Verdict.HELD
    return tag


def parked(stage: Stage) -> str:
    """Park a message; return the tag of the one whose task holds its key."""
    tag = holder(stage)
    stage.publish("m")
    assert keyed(stage, 1).verdict is Verdict.PARKED
    return tag


@move
def arrive(stage: Stage) -> Callable[[], object]:
    stage.publish("m")
    return lambda: stage.arrive(1)


def arrived_plain(stage: Stage) -> Arrived:
    """Take a message of a task without leases as a busy worker does."""
    stage.publish("m")
    key, text, plain = stage.take("arrival#1", '""', f"\n{TASK}\n") or pytest.fail("no message")
    assert plain == "plain"
    return Arrived("arrival#1", key, text)


@move
def arrive_plain(stage: Stage) -> Callable[[], object]:
    stage.publish("m")
    return lambda: stage.take("arrival#1", '""', f"\n{TASK}\n")


@move
def return_plain(stage: Stage) -> Callable[[], object]:
    arrived = arrived_plain(stage)
    return lambda: stage.drivers[0].return_unclaimed([arrived])


@move
def return_plain_unheard(stage: Stage) -> Callable[[], object]:
    arrived = Arrived(arrived_plain(stage).tag)
    return lambda: stage.drivers[0].return_unclaimed([arrived])


@move
def claim(stage: Stage) -> Callable[[], object]:
    stage.publish("m")
    (delivery, _) = stage.arrive(1) or pytest.fail("no message")
    return lambda: stage.drivers[0].claim(delivery, Terms(seconds=10), 0.0)


@move
def begin(stage: Stage) -> Callable[[], object]:
    tag = held(stage)
    return lambda: stage.drivers[0].begin([tag])


@move
def adopt(stage: Stage) -> Callable[[], object]:
    stage.publish("m")
    (delivery, plain) = stage.arrive(1) or pytest.fail("no message")
    return lambda: stage.drivers[0].adopt(delivery.arrival, "m", plain)


@move
def unclaim(stage: Stage) -> Callable[[], object]:
    stage.publish("m")
    (delivery, _) = stage.arrive(1) or pytest.fail("no message")
    return lambda: stage.drivers[0].return_unclaimed([delivery])


@move
def unclaim_what_was_claimed(stage: Stage) -> Callable[[], object]:
    stage.publish("m")
    (delivery, _) = stage.arrive(1) or pytest.fail("no message")
    stage.drivers[0].claim(delivery, Terms(seconds=10), 0.0)
    return lambda: stage.drivers[0].return_unclaimed([delivery])


@move
def extend(stage: Stage) -> Callable[[], object]:
    tag = held(stage)
    return lambda: stage.drivers[0].extend([Renewal(tag, 20)])


@move
def requeue(stage: Stage) -> Callable[[], object]:
    tag = held(stage)
    return lambda: stage.drivers[0].requeue([tag])


@move
def give_up(stage: Stage) -> Callable[[], object]:
    tag = held(stage)
    return lambda: stage.drivers[0].requeue([tag], orderly=False)


@move
def rest(stage: Stage) -> Callable[[], object]:
    tag = held(stage, losses=1)
    return lambda: stage.drivers[0].requeue([tag], orderly=False)


@move
def dead_letter(stage: Stage) -> Callable[[], object]:
    tag = held(stage)
    return lambda: stage.drivers[0].dead_letter(tag, "q.dead")


@move
def move_dead_letter(stage: Stage) -> Callable[[], object]:
    stage.drivers[0].dead_letter(held(stage), "q.dead")
    letters = stage.drivers[0].dead_letters()
    (letter,) = letters.letters("q.dead")
    return lambda: letters.retry(letter)


@move
def reap(stage: Stage) -> Callable[[], object]:
    held(stage, seconds=0)
    return lambda: stage.drivers[0].reap(limit=10)


@move
def sweep(stage: Stage) -> Callable[[], object]:
    stage.publish("m")
    stage.take_plainly()
    stage.set_clock(START + 100)
    return lambda: stage.drivers[0].reap(limit=10)


@move
def take(stage: Stage) -> Callable[[], object]:
    stage.publish("m")
    tag = keyed(stage, 1).tag
    return lambda: stage.drivers[0].take_key(tag)


@move
def park_when_it_arrives(stage: Stage) -> Callable[[], object]:
    holder(stage)
    stage.publish("m")
    (delivery, _) = stage.arrive(1) or pytest.fail("no message")
    terms = Terms(seconds=10, about={"id": "m"}, exclusive=Exclusive(key="k"))
    return lambda: stage.drivers[0].claim(delivery, terms, 0.0)


@move
def park_before_it_starts(stage: Stage) -> Callable[[], object]:
    holder(stage)
    stage.publish("m")
    tag = keyed(stage, 1, decides=False).tag
    return lambda: stage.drivers[0].take_key(tag)


@move
def oust(stage: Stage) -> Callable[[], object]:
    tag = holder(stage)
    stage.drivers[0].extend([Renewal(tag, 0)])
    stage.publish("m")
    tag = keyed(stage, 1).tag
    return lambda: stage.drivers[0].take_key(tag)


@move
def replace_what_is_parked(stage: Stage) -> Callable[[], object]:
    parked(stage)
    stage.publish("newest")
    tag = keyed(stage, 2, OnBusy.REPLACE, decides=False).tag
    return lambda: stage.drivers[0].take_key(tag)


@move
def wake(stage: Stage) -> Callable[[], object]:
    tag = parked(stage)
    return lambda: stage.drivers[0].requeue([tag])


@move
def tend(stage: Stage) -> Callable[[], object]:
    parked(stage)
    stage.set_clock(START + 60)
    return lambda: stage.drivers[0].reap(limit=10)


# ------------------------------------------------------------------------------------- the server


class Server:
    """The server as its owner sees it, who makes it fail for one user."""

    def __init__(self, url: str) -> None:
        self.client: Any = redis.Redis.from_url(url, socket_timeout=5)
        self.client.execute_command("ACL", "SETUSER", "w", "reset", "on", ">w", "~*", "&*", "+@all")
        parts = urlsplit(url)
        self.url = parts._replace(netloc=f"w:w@{parts.netloc.rpartition('@')[2]}").geturl()

    @contextmanager
    def wrong_type(self, key: str) -> Iterator[None]:
        """Let a key be of another type; what is in it is not lost."""
        existed = self.client.exists(key)
        if existed:
            self.client.rename(key, "aside")
        (self.client.set if key != "unacked.token" else self.client.lpush)(key, "wrong")
        yield
        self.client.delete(key)
        if existed:
            self.client.rename("aside", key)

    @contextmanager
    def no_number(self, key: str) -> Iterator[None]:
        """Let a counter be none."""
        self.client.set(key, "no number")
        yield
        if self.client.get(key) == b"no number":
            self.client.delete(key)

    @contextmanager
    def forbidden(self, command: str) -> Iterator[None]:
        """Forbid a command."""
        self.client.execute_command("ACL", "SETUSER", "w", f"-{command}")
        yield
        self.client.execute_command("ACL", "SETUSER", "w", f"+{command}")

    @contextmanager
    def hidden(self, key: str) -> Iterator[None]:
        """Forbid a key."""
        others = [f"~{each}" for each in [*KEYS, "clock", "_kombu*"] if each != key]
        self.client.execute_command("ACL", "SETUSER", "w", "resetkeys", *others)
        yield
        self.client.execute_command("ACL", "SETUSER", "w", "resetkeys", "~*")

    @contextmanager
    def full(self, maxmemory: str) -> Iterator[None]:
        """Let the memory be used up."""
        self.client.config_set("maxmemory", maxmemory)
        yield
        self.client.config_set("maxmemory", 0)


FAULTS = [
    *(("wrong_type", key) for key in KEYS),
    ("no_number", "unacked.token"),
    *(("forbidden", command) for command in COMMANDS.split()),
    *(("hidden", key) for key in KEYS),
    ("full", "1"),
]


@pytest.fixture(scope="module", params=["valkey", "redis_server"])
def server(request: pytest.FixtureRequest) -> Server:
    """Both servers: each has its own way to refuse."""
    return Server(request.getfixturevalue(request.param).fresh_url())


@pytest.fixture(scope="module")
def stage(server: Server) -> Iterator[Stage]:
    """The scripts, run by the user for whom they fail."""
    with Stage(server.url, prefix="") as stage:
        yield stage


def places(stage: Stage) -> Counter[str]:
    """Count where a message is; held is what a sweep finds, and it can be returned."""
    view = stage.view()
    found = Counter({"queue": sum(map(len, view["queues"].values())), "dead": len(view["dead"])})
    found["held"] = len(view["held"].keys() & view["index"].keys())
    return +found


@pytest.mark.parametrize("name", MOVES)
def test_a_script_that_fails_midway_loses_and_doubles_no_message(
    name: str, server: Server, stage: Stage
) -> None:
    """For every script, and everything that a server may refuse it; afterwards it works."""
    wrong = []
    for fault, what in FAULTS:
        stage.clear(START)
        act = MOVES[name](stage)
        count = places(stage).total()
        with getattr(server, fault)(what):
            for _ in range(2):  # who hears of no success asks again
                with suppress(ScriptError, redis.RedisError, OSError):
                    act()  # type: ignore[operator]
        found = places(stage)
        if found.total() != count:
            wrong.append(f"{fault} {what}: {dict(found)}")
            continue
        stage.set_clock(START + 1000)
        for _ in range(2):
            stage.drivers[0].reap(limit=10)
        if (found := places(stage)).total() != count or found["held"]:
            wrong.append(f"{fault} {what}, later: {dict(found)}")
    assert not wrong
