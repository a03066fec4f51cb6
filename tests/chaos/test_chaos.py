"""That the verdict can fail; ``python -m tests.chaos`` is what gives one."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from celery_lease.brokers.redis.sweeps import ARRIVAL
from celery_lease.testing import conformance
from chaos.arrival import Stage
from chaos.histogram import bars
from chaos.store import Effects, Store
from chaos.verdict import Verdict, judge
from harness.lease_desk import Bench, Desk
from harness.ledger import Entry
from harness.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.brokers import RedisServer

TESTS = Path(__file__).resolve().parent.parent
FIRST, SECOND = 1_000_000_000, 1_010_000_000  #: tokens: leases that began at 1,000 and 1,010 s


def entry(event: str, token: int, wall: float) -> Entry:
    """Return what a run wrote."""
    facts = {"token": token, "wall": wall}
    return Entry(event=event, task_id="t", worker="w", pid=1, at=0.0, facts=facts)


def verdict(effects: dict[str, Effects], *entries: Entry) -> Verdict:
    """Judge what the store and the ledger say of one task."""
    return Verdict(
        seed=1,
        seconds=1.0,
        sent=len(effects),
        findings=judge(effects, entries),
        staged=Counter(),
        left={},
        died=0,
        stuck=0,
    )


def test_a_run_that_saw_its_lease_as_held_after_another_began_is_an_overlap() -> None:
    """Held at 1,010.5 s, while the second lease began at 1,010 s: that fails the staging."""
    runs = entry("start", FIRST, 1000.1), entry("start", SECOND, 1010.1)
    held = {FIRST: 1010.5, SECOND: 1012.0}
    found = verdict({"t": Effects(done=1, held=held)}, *runs)
    assert len(found.findings.overlaps) == 1
    assert not found.is_good()


def test_a_takeover_after_the_last_beat_is_no_overlap_but_a_recovery() -> None:
    """Held until 1,004 s and run elsewhere at 1,010.1 s: 6.1 seconds to recover."""
    runs = entry("start", FIRST, 1000.1), entry("start", SECOND, 1010.1)
    held = {FIRST: 1004.0, SECOND: 1012.0}
    found = verdict({"t": Effects(done=1, held=held, refused=1)}, *runs)
    assert found.is_good()
    assert found.findings.recoveries == [pytest.approx(6.1)]
    assert (found.findings.redelivered, found.findings.refused) == (1, 1)


def test_a_task_without_its_last_effect_is_lost() -> None:
    """Begun and never done: that fails the staging."""
    found = verdict({"t": Effects(held={FIRST: 1001.0})}, entry("start", FIRST, 1000.1))
    assert found.findings.lost == ["t"]
    assert not found.is_good()


def test_two_tasks_that_hold_a_key_at_once_fail_the_staging() -> None:
    """Where the one saw its lease as held after the other had started."""
    facts = {"t": (FIRST, 1000.1), "u": (SECOND, 1003.0)}
    entries = [
        replace(entry("start", token, wall), task_id=each) for each, (token, wall) in facts.items()
    ]
    keys = {"t": "k", "u": "k"}
    for held_at, count in ((1002.9, 0), (1003.1, 1)):
        effects = {
            "t": Effects(done=1, held={FIRST: held_at}),
            "u": Effects(done=1, held={SECOND: 1004.0}),
        }
        assert len(judge(effects, entries, keys).shared) == count
        assert not judge(effects, entries).shared


def test_the_histogram_counts_every_time_once() -> None:
    """Times on the bounds and beyond the last one have a class each."""
    times = [0.0, 0.5, 4.0, 7.2, 500.0]
    assert sum(bar.count for bar in bars(times)) == len(times)


def test_the_store_refuses_a_former_holder(own_valkey: RedisServer) -> None:
    """A write with a smaller token changes nothing and is counted."""
    store = Store(own_valkey.url())
    assert store.write("t", SECOND, "done", 1010.0)
    assert not store.write("t", FIRST, "done", 1009.0)
    effects = store.effects("t")
    assert (effects.done, effects.refused) == (1, 1)
    assert effects.held == {FIRST: 1009.0, SECOND: 1010.0}


@pytest.mark.parametrize("stopped", [False, True], ids=["killed", "stopped, then killed"])
def test_a_killed_consumer_takes_no_message_along(own_valkey: RedisServer, stopped: bool) -> None:
    """What was on its way to it goes back as it was sent: it counts as no delivery.

    Plain kombu, in the same scene of ``python -m tests.chaos.arrival``: 6 of 10 kills lose one at
    100 messages a second, and every kill of a consumer that was stopped while it waited.
    """
    stage = Stage(own_valkey, leased=True)
    if stopped:
        stage.kill_the_stopped(1)
    else:
        stage.kill_in_a_stream(8, rate=100.0)
    assert stage.sent
    assert stage.lost() == 0
    if stopped:
        with Desk(stage.url, "q") as desk:

            def returned() -> bool:
                desk.driver.reap(limit=10)  # unless it was never taken
                desk.turn(0.1)
                return bool(desk.received)

            eventually(returned, ARRIVAL + 10, what="it is received")
            (message,) = desk.receive()
            assert (message.claim.deliveries, message.claim.losses) == (1, 0)


def test_every_test_that_the_page_names_exists() -> None:
    """A guarantee without its test is none."""
    page = (TESTS.parent / "docs" / "guarantees.md").read_text()
    names = set(re.findall(r"`(test_\w+)`", page))
    paths = [*TESTS.rglob("test_*.py"), *Path(conformance.__path__[0]).glob("*.py")]
    sources = "".join(path.read_text() for path in paths)
    assert len(names) > 20
    assert {name for name in names if f"def {name}(" not in sources} == set()


@pytest.fixture
def bench(own_valkey: RedisServer) -> Iterator[Bench]:
    """Consumers on a server that this test may end."""
    made = Bench(own_valkey.url())
    yield made
    for desk in made.desks:
        desk.driver.close()


def test_a_channel_with_leases_closes_although_its_broker_is_gone(
    bench: Bench, own_valkey: RedisServer
) -> None:
    """Celery lets go of the transport before the channel closes, and kombu cannot connect then."""
    bench.publish("body")
    desk = bench.desk()
    desk.receive()
    own_valkey.kill()
    own_valkey.wait()
    desk.connection.transport.client = None  # as Connection.collect() leaves it
    desk.channel.close()
