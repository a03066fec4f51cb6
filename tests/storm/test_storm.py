"""Half a minute of the storm; ``python -m tests.storm`` stages longer ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.setup import Setup
from storm.play import Storm, StormOptions

if TYPE_CHECKING:
    from harness.brokers import RedisServer
    from harness.workers import WorkerFleet


@pytest.mark.chaos
@pytest.mark.timeout(150)
def test_no_message_is_lost_and_none_runs_twice_while_workers_are_restarted(
    valkey: RedisServer, fleet: WorkerFleet
) -> None:
    """Messages pour in, each two seconds a worker is told to stop; the ledger has each one once."""
    setup = Setup(valkey.fresh_url())
    with valkey.client(setup.database) as client:
        verdict = Storm(StormOptions(seconds=30, seed=1), setup, fleet, client).run()
    assert verdict.good, str(verdict)
    assert verdict.restarts >= 5
    assert verdict.completed.total() > 300
