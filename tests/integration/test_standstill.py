"""A task that lets nothing else run in the worker's process: what is lost by it says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.relay_stage import EXTENSION, RelayStage

if TYPE_CHECKING:
    from pathlib import Path

    from harness.brokers import RedisServer


@pytest.mark.parametrize("pool", ["threads", "gevent"])
def test_a_loss_by_a_task_that_lets_no_other_run_says_so(
    valkey: RedisServer, tmp_path: Path, pool: str
) -> None:
    """C code that keeps the interpreter's lock, beside a task that beats: log and error tell."""
    stage = RelayStage(valkey, tmp_path, lease_watchdog_threshold=300)
    try:
        worker = stage.start(pool, 2)
        beating = stage.send("beats", 3 * EXTENSION)
        stage.wait("start", beating)
        hog = stage.send("hog", int(2 * EXTENSION))
        lost = stage.wait("lost", beating)
        assert "the worker's process stood still for " in lost.facts["reason"]
        worker.wait_log(f"[{beating}] lost (expired)")
        (line,) = [
            text for text in worker.log.splitlines() if f"[{beating}] lost (expired)" in text
        ]
        assert "this process stood still for " in line
        stage.wait("end", beating, within=60)
        stage.wait("end", hog)
    finally:
        stage.close()
