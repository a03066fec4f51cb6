"""Leases beside Sentry's Celery integration, with a request class of the project's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.workers import WorkerFleet, WorkerOptions

if TYPE_CHECKING:
    from harness.ledger import Ledger
    from harness.setup import Setup

pytestmark = pytest.mark.compat


def test_sentry_hears_of_failures_only_and_the_leases_hold(
    setup: Setup, fleet: WorkerFleet, ledger: Ledger
) -> None:
    """A run that lost its lease is no error: Sentry hears of its end, and not as an event."""
    pytest.importorskip("sentry_sdk")
    fleet.start(setup, WorkerOptions(module="harness.app_sentry", concurrency=3))
    with setup.app() as app:
        long = app.send_task("sentry.long", [6], headers={"mine": "1"})
        stuck, fails = app.send_task("sentry.stuck"), app.send_task("sentry.fails")
        assert long.get(timeout=60) == 1
        assert stuck.get(timeout=60) == 2
        with pytest.raises(ValueError, match="failed"):
            fails.get(timeout=60)
    spans = ledger.wait("sentry transaction", count=4)
    assert sorted(each.facts["task"] for each in spans) == [
        "sentry.fails",
        "sentry.long",
        *["sentry.stuck"] * 2,
    ]
    (event,) = ledger.entries("sentry event")
    assert event.facts == {"task": "sentry.fails", "errors": ["ValueError"]}
    assert ledger.count("accepted", long.id) == 1
