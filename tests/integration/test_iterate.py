"""Loops in real workers that are killed and stopped in them, and that go on elsewhere."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from harness.places import PGMQ
from harness.workers import WorkerOptions

if TYPE_CHECKING:
    from pathlib import Path

    from harness.ledger import Ledger
    from harness.setup import Setup
    from harness.workers import WorkerFleet

pytestmark = pytest.mark.compat

OPTIONS = WorkerOptions(module="harness.app_checkpoints")
LEASE = {"lease_extension": 3, "lease_reaper_interval": 1}
ROWS = [*range(1, 41)]


@pytest.fixture(params=["valkey", *PGMQ])
def setup(request: pytest.FixtureRequest, setup: Setup, tmp_path: Path) -> Setup:
    """Checkpoints at a result backend on Valkey, and at a pgmq broker."""
    if request.param == "valkey":
        return setup
    database = request.getfixturevalue("postgres").fresh_database()
    results = f"db+sqlite:///{tmp_path / 'results.sqlite'}"
    return replace(database.setup(), backend=results).having(worker_enable_remote_control=False)


def rows_of(ledger: Ledger, task_id: str) -> list[int]:
    """Return the rows that were completed, in the order of the work."""
    return [entry.facts["row"] for entry in ledger.entries("row", task_id)]


@pytest.mark.chaos
def test_a_loop_goes_on_after_its_worker_was_killed(setup: Setup, fleet: WorkerFleet) -> None:
    """None is skipped; what was not saved yet comes again, at most half a second of it."""
    setup, ledger = setup.having(**LEASE), fleet.ledger
    first = fleet.start(setup, OPTIONS)
    result = setup.app().send_task("checkpoints.rows", (ROWS[-1], 0.5))
    ledger.wait("row", result.id, count=20)
    first.kill_group()
    done = rows_of(ledger, result.id)
    fleet.start(setup, OPTIONS)
    assert result.get(timeout=40) == 40
    again = rows_of(ledger, result.id)[len(done) :]
    assert done == ROWS[: len(done)]
    assert again == ROWS[again[0] - 1 :], "it goes on in the middle, and goes on to the end"
    assert 10 < again[0] <= len(done) + 1
    starts = [entry.facts["deliveries"] for entry in ledger.entries("start", result.id)]
    assert starts == [1, 2]


@pytest.mark.chaos
def test_a_loop_that_is_handed_over_repeats_no_row(setup: Setup, fleet: WorkerFleet) -> None:
    """Its worker is stopped, long before the next save."""
    setup, ledger = setup.having(**LEASE), fleet.ledger
    first = fleet.start(setup, OPTIONS)
    result = setup.app().send_task("checkpoints.rows", (ROWS[-1], 600))
    ledger.wait("row", result.id, count=10)
    first.term()
    first.wait()
    fleet.start(setup, OPTIONS)
    assert result.get(timeout=40) == 40
    assert rows_of(ledger, result.id) == ROWS
    assert ledger.count("start", result.id) == 2
