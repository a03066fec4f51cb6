"""What a worker's runtime decides by itself."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest import mock

from celery_lease.worker.runtime import Runtime
from unit.fake_broker import POLICY, Bench


def wakes(bench: Bench, interval: float, *, looks_in: float, claims: int = 1) -> int:
    """Return how often the keeper is woken by the claims of leases with an interval."""
    keeper = SimpleNamespace(wake=mock.Mock())
    runtime: Any = SimpleNamespace(_keeping=keeper, _looks_at=bench.clock.now() + looks_in)
    bench.leases.on_claimed = lambda lease: Runtime._hurry(runtime, lease)
    policy = replace(POLICY, extension=4 * interval, interval=interval)
    for number in range(claims):
        bench.receive(f"t{number}", policy=policy)
    return int(keeper.wake.call_count)


def test_a_lease_that_is_shorter_than_the_keepers_wait_wakes_it(bench: Bench) -> None:
    """It looks in half a second; this one is due in a fifth."""
    assert wakes(bench, 0.2, looks_in=0.5) == 1


def test_a_keeper_that_looks_soon_enough_is_not_woken_by_each_message(bench: Bench) -> None:
    """It looks at all leases each time: with thousands arriving nothing else would be done.

    Removed: the look ahead in ``Runtime._hurry``; failed with: ``100 == 0``.
    """
    assert wakes(bench, 1.2, looks_in=0.3, claims=100) == 0


def test_the_first_lease_ends_the_rest_of_all_threads(bench: Bench) -> None:
    """Those that come after it wake nobody."""
    threads = [SimpleNamespace(wake=mock.Mock()) for _ in range(3)]
    keeping, watching, answering = threads
    runtime: Any = SimpleNamespace(
        leases=bench.leases,
        _keeping=keeping,
        _watching=watching,
        _answering=answering,
        _loop_interval=0.0,
        _hurry=lambda _: None,
    )
    runtime._wake = lambda: Runtime._wake(runtime)
    bench.leases.on_claimed = lambda lease: Runtime._claimed(runtime, lease)
    bench.leases.resting = True
    bench.receive("t1")
    bench.receive("t2")
    assert [each.wake.call_count for each in threads] == [1, 1, 1]
    assert not bench.leases.resting
