"""``celery lease advise`` by what a real worker has seen of its tasks, in observe mode."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from harness.relay_stage import EXTENSION, RelayStage
from harness.shell import Shell
from harness.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from harness.brokers import RedisServer

LONG = EXTENSION + 1


@pytest.fixture
def stage(valkey: RedisServer, tmp_path: Path) -> Iterator[RelayStage]:
    """A stage whose tasks are observed."""
    stage = RelayStage(valkey, tmp_path, lease_mode="observe")
    yield stage
    stage.close()


def test_advice_is_by_what_observed_tasks_did(stage: RelayStage) -> None:
    """Of those that beat, often or once, and one that never does; nothing was lost.

    The keeper does not see a beat at the very beginning or end of a run.
    """
    for name in ("beats", "silent"):
        stage.send(name, LONG)
    for first in (True, False):
        stage.send("once", LONG, first)
    worker = stage.start("threads", 4)
    asked = ("-d", worker.hostname, "-t", "20")  # it answers when its tasks let it
    shell = Shell(stage.setup.app())

    tasks: dict[str, Any] = {}

    def have_both_ended() -> bool:
        document = json.loads(shell("advise", "--format", "json", *asked))
        tasks.update({each["task"]: each for each in document["tasks"] if each["runs"]})
        return len(tasks) == 3 and tasks["relay.once"]["runs"] == 2

    eventually(have_both_ended, 30)
    beats, silent = tasks["relay.beats"], tasks["relay.silent"]
    assert beats["now"] == {"lease_mode": "observe", "lease_extension": EXTENSION}
    assert beats["gaps"]["count"] > 4
    assert beats["gaps"]["max"] < LONG / 2
    assert (beats["silent"], silent["silent"]) == (0, 1)
    once = tasks["relay.once"]
    assert (once["silent"], once["late"], once["proposed"]["lease_mode"]) == (0, 2, "heartbeat")
    assert min(silent["gaps"]["max"], once["gaps"]["max"]) >= EXTENSION
    assert silent["longest_run"] >= LONG - 0.1
    assert (silent["late"], silent["lost"]) == (1, 0)
    assert beats["proposed"]["lease_mode"] == "heartbeat"
    assert silent["proposed"]["lease_mode"] == "daemon"
    assert silent["proposed"]["lease_max_duration"] is None  # after one run
    assert "'relay.silent': {'lease_mode': 'daemon'" in shell(
        "advise", "--format", "python", *asked
    )
    shell.app.close()
