"""A worker inside somebody else's process, as tests and notebooks start one."""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from harness import ledger as ledgers
from harness.processes import LocalProcess
from harness.relay_stage import EXTENSION, RelayStage
from harness.workers import TESTS

if TYPE_CHECKING:
    from pathlib import Path

    from harness.brokers import RedisServer

pytestmark = pytest.mark.compat

RUNS = 5


@pytest.mark.parametrize("pool", ["solo", "threads"])
def test_an_embedded_worker_leaves_nothing_behind(
    valkey: RedisServer, tmp_path: Path, pool: str
) -> None:
    """Some workers, one after the other, each with a task longer than its lease, which runs once:
    no thread and no lock is left, and no file stays open.
    """
    stage = RelayStage(valkey, tmp_path)
    stage.setup = stage.setup.having(task_ignore_result=False, result_backend=stage.setup.broker)
    env = {
        **stage.setup.env(),
        "PYTHONPATH": str(TESTS),
        ledgers.ENV: str(stage.ledger.path),
    }
    arguments = [pool, str(1.2 * EXTENSION), str(RUNS)]
    command = [sys.executable, "-m", "harness.embedded_relay", *arguments]
    with LocalProcess(command, tmp_path / "embedded.log", env=env) as process:
        process.start()
        assert process.wait(80) == 0, process.log
        left = [json.loads(line) for line in process.log.splitlines() if line.startswith("{")]
    assert [(each["threads"], each["locks"]) for each in left] == [([], 0)] * RUNS
    # The first run opens what the process keeps, connections of producers and results; another one
    # where two threads happen to need one at once. What is left behind is so each time.
    files = [each["files"] for each in left[1:]]
    assert not all(before < after for before, after in pairwise(files)), files
    assert stage.ledger.count("start") == stage.ledger.count("end") == RUNS
    assert stage.is_settled()
    stage.close()
