"""What a worker's runtime decides by itself."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest import mock

from celery_lease.worker.keeper import SLOW_LOOP
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
    """Also that of the main loop, as soon as it turns; those that come after it wake nobody."""
    threads = [SimpleNamespace(wake=mock.Mock()) for _ in range(3)]
    keeping, watching, answering = threads
    runtime: Any = SimpleNamespace(
        leases=bench.leases,
        _keeping=keeping,
        _watching=watching,
        _answering=answering,
        _consumer=SimpleNamespace(timer=SimpleNamespace(call_after=lambda _, call: call())),
        _loop_interval=0.0,
        _ticks_slowly=True,
        _hurry=lambda _: None,
    )
    seen = mock.Mock(side_effect=lambda: setattr(runtime, "_ticks_slowly", False))
    runtime._tick = seen
    runtime._wake = lambda: Runtime._wake(runtime)
    bench.leases.on_claimed = lambda lease: Runtime._claimed(runtime, lease)
    bench.leases.resting = True
    bench.receive("t1")
    bench.receive("t2")
    assert [each.wake.call_count for each in threads] == [1, 1, 1]
    assert seen.call_count == 1
    assert not bench.leases.resting


def test_the_main_loop_gives_signs_of_life_more_slowly_in_a_rest() -> None:
    """It goes on as before once the worker does not rest any more."""
    timer = SimpleNamespace(call_repeatedly=mock.Mock(), cancel=mock.Mock())
    timer.call_after = lambda _, call: call()
    leases = mock.Mock(resting=False, news=[])
    leases.intake.draining = leases.driver.is_tended = leases.outbox.left = False
    runtime: Any = SimpleNamespace(
        leases=leases,
        _consumer=SimpleNamespace(timer=timer),
        _channel=None,
        _end_ticks=mock.Mock(),
        _ticks_slowly=False,
        _loop_interval=0.5,
        _turn_soon=mock.Mock(),
        _send_news=mock.Mock(),
    )
    runtime._tick = lambda **options: Runtime._tick(runtime, **options)
    runtime._see_loop = lambda: Runtime._see_loop(runtime)
    runtime._tick()
    for resting in (False, True, True, False, False):
        leases.resting = resting
        runtime._see_loop()
    assert [call.args[0] for call in timer.call_repeatedly.call_args_list] == [0.5, SLOW_LOOP, 0.5]
