"""Fixtures of the suite: the broker and its consumers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_lease.testing.desk import Bench, Desk

#: Seconds of a lease that does not expire within a test.
LONG = 60.0


@pytest.fixture
def bench(driver_under_test: Bench, request: pytest.FixtureRequest) -> Bench:
    """The broker under test; skips a test that needs a feature which it lacks."""
    needs = {need for mark in request.node.iter_markers("needs") for need in mark.args}
    if missing := sorted(needs & driver_under_test.lacks):
        pytest.skip(f"this broker lacks: {', '.join(missing)}")
    return driver_under_test


@pytest.fixture
def desk(bench: Bench) -> Iterator[Desk]:
    """A consumer with long leases."""
    with bench.desk(seconds=LONG) as desk:
        yield desk


@pytest.fixture
def other(bench: Bench) -> Iterator[Desk]:
    """A second consumer, as in another worker."""
    with bench.desk(seconds=LONG) as desk:
        yield desk
