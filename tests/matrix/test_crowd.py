"""Thousands of tasks at once in one green worker, in the mode that asks for no beat."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from harness.ledger import now
from harness.relay_stage import RelayStage
from harness.waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from harness.brokers import RedisServer

pytestmark = [pytest.mark.timeout(600), pytest.mark.long]

MANY = 3_000
EXTENSION = 10.0


def test_three_thousand_daemon_tasks_in_one_worker_hold_their_leases(
    valkey: RedisServer, tmp_path: Path
) -> None:
    """All run for more than two leases after the last one has begun, in one delivery each."""
    stage = RelayStage(valkey, tmp_path, lease_extension=EXTENSION, lease_mode="daemon")
    try:
        worker = stage.start("gevent", MANY)
        sent = stage.send_many(MANY, "gated", str(tmp_path / "gate"))
        ledger = stage.ledger
        eventually(lambda: ledger.count("start") >= MANY, 240, every=2.0, what="all have begun")
        begun_at = now()
        eventually(lambda: now() - begun_at > 2.5 * EXTENSION, 60, every=0.5, what="two leases")
        assert stage.held() == MANY
        assert "lost" not in worker.log
        starts = Counter(entry.task_id for entry in ledger.entries("start"))
        assert starts == Counter(sent), "each was begun once"
    finally:
        stage.close()
