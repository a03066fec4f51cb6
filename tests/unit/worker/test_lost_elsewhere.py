"""What the worker's table of leases does for a broker that takes messages back by itself."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from celery_lease.core.delivery import Answer, Capabilities
from celery_lease.core.lease import State
from celery_lease.core.loss import FLAGS_ENDED, LossReason
from unit.fake_broker import Bench, Call, FakeDriver

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


@pytest.fixture
def bench() -> Iterator[Bench]:
    """A worker's table, board and keeper."""
    bench = Bench()
    yield bench
    bench.board.close()


def test_a_message_that_is_with_others_is_lost_at_once(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """Its task is told at its next beat, without an extension having been tried; once."""
    held = bench.run()
    with caplog.at_level(logging.WARNING):
        bench.leases.lost(["a", "unknown"])
        bench.leases.lost(["a"])
    assert (held.lease.state, held.lease.lost) == (State.LOST, LossReason.SUPERSEDED)
    assert bench.flags_of(held) == FLAGS_ENDED
    assert bench.gate(held) == 0.0
    (line,) = caplog.messages
    assert "another delivery owns the message" in line
    bench.beat(held)
    bench.passed(5)
    assert bench.driver.count("extend") == 0


def test_what_only_waited_is_lost_without_a_word(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody worked on it, and it is not started any more."""
    bench.receive()
    bench.leases.lost(["a"])
    assert not caplog.messages
    assert bench.leases.start("a") is None


def test_the_broker_is_told_what_is_dropped_if_it_cares(bench: Bench) -> None:
    """An acknowledgement would keep the message from the broker's own dead-letter queue."""

    class Caring(FakeDriver):
        capabilities = Capabilities(
            extends=True, fences=True, confirms=False, granularity=0.0, drops=True
        )

        def drop(self, tags: Sequence[str]) -> list[Answer]:
            self.calls.append(Call("drop", list(tags)))
            return [Answer.HELD for _ in tags]

    bench.leases.driver = driver = Caring(bench.clock)
    bench.run()
    for _ in range(2):
        bench.leases.drop("a")
    assert driver.sent("drop") == ["a"]
    assert driver.count("complete") == 0
