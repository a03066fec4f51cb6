"""Modes and limits of a lease, read from one run of one worker. Leases last 3 s."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.relay_stage import EXTENSION, RelayStage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.brokers import RedisServer

LONG = 1.7 * EXTENSION


class Modes:
    """One worker, and a task under each rule."""

    def __init__(self, stage: RelayStage) -> None:
        self.stage = stage
        self.daemon = self._send("silent", LONG, lease_mode="daemon")
        self.observed = self._send("silent", LONG, lease_mode="observe")
        self.capped = self._send("beats", 3 * EXTENSION, lease_max_duration=EXTENSION + 1)
        self.careless = self._send("careless", LONG)
        self.worker = stage.start("prefork", 4)
        for task_id in (self.daemon, self.observed, self.careless):
            stage.wait("end", task_id, within=40)
        stage.ledger.wait("start", self.capped, count=2)
        self.losses = stage.claims()[self.capped]["losses"]
        stage.wait("end", self.careless, count=2, within=40)

    def _send(self, name: str, seconds: float, **options: object) -> str:
        return self.stage.send(name, seconds, headers={"lease": options})


@pytest.fixture(scope="module")
def modes(valkey: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Modes]:
    """Everything done."""
    stage = RelayStage(valkey, tmp_path_factory.mktemp("modes"))
    yield Modes(stage)
    stage.close()


def test_a_daemon_lease_needs_no_beats(modes: Modes) -> None:
    """Silent for longer than its lease, run once."""
    assert modes.stage.runs(modes.daemon) == [("start", 1), ("end", 1)]


def test_an_observed_lease_is_kept_and_its_loss_in_heartbeat_mode_is_told(modes: Modes) -> None:
    """Silent for longer than its lease, run once, and one line says what leases would have done."""
    assert modes.stage.runs(modes.observed) == [("start", 1), ("end", 1)]
    lines = [line for line in modes.worker.log.splitlines() if "is observed" in line]
    (line,) = lines
    assert modes.observed in line
    assert "'heartbeat' would have lost its lease after" in line


def test_no_lease_is_held_longer_than_its_longest_duration(modes: Modes) -> None:
    """It beats all the time and is told so all the same, after 4 s of its 9; the log says why.

    Its message goes back as one that was lost, so that a task that never ends is given up one day.
    """
    start, *_ = modes.stage.ledger.entries("start", modes.capped)
    lost, *_ = modes.stage.ledger.entries("lost", modes.capped)
    assert EXTENSION < lost.at - start.at < 2.9 * EXTENSION
    assert modes.losses == 1
    assert f"[{modes.capped}] lost (lease_max_duration reached)" in modes.worker.log


def test_a_task_that_goes_on_when_its_lease_is_lost_is_fenced_all_the_same(modes: Modes) -> None:
    """Both runs end and none is told; one of them was acknowledged, and nothing is left of it."""
    events = modes.stage.runs(modes.careless)
    assert sorted(events) == [("end", 1), ("end", 2), ("start", 1), ("start", 2)]
    assert modes.careless not in modes.stage.claims()


def test_silence_is_warned_about_once_for_each_task_name(modes: Modes) -> None:
    """Of all that ran only one was silent in heartbeat mode."""
    lines = [line for line in modes.worker.log.splitlines() if "half of its lease" in line]
    assert len(lines) == 1
    assert "relay.careless" in lines[0]
