"""What the bootsteps decide by themselves."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from celery_lease.worker.steps import LeaseConsumer
from unit.fake_broker import POLICY, Bench

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def bench() -> Iterator[Bench]:
    """A worker's leases."""
    bench = Bench()
    yield bench
    bench.leases.close()


def wakes(bench: Bench, interval: float, *, looks_in: float, claims: int = 1) -> int:
    """Return how often the keeper is woken by the claims of leases with an interval."""
    step = LeaseConsumer(mock.Mock())
    step.leases = bench.leases
    keeper: Any = SimpleNamespace(wake=mock.Mock())
    step._services = [keeper]
    step._looks_at = bench.clock.now() + looks_in
    bench.leases.on_claimed = step._hurry
    policy = replace(POLICY, extension=4 * interval, interval=interval)
    for number in range(claims):
        bench.receive(f"t{number}", policy=policy)
    return int(keeper.wake.call_count)


def test_a_lease_that_is_shorter_than_the_keepers_wait_wakes_it(bench: Bench) -> None:
    """It looks in half a second; this one is due in a fifth."""
    assert wakes(bench, 0.2, looks_in=0.5) == 1


def test_a_keeper_that_looks_soon_enough_is_not_woken_by_each_message(bench: Bench) -> None:
    """It looks at all leases each time: with thousands arriving nothing else would be done.

    Removed: the look ahead in ``LeaseConsumer._hurry``; failed with: ``100 == 0``.
    """
    assert wakes(bench, 1.2, looks_in=0.3, claims=100) == 0
