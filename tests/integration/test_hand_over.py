"""``lease hand-over`` and ``lease stack``: one task of a worker that stays up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from harness.shell import Shell
from harness.stage import RedisStage
from harness.waiting import eventually

if TYPE_CHECKING:
    from harness.brokers import RedisServer
    from harness.setup import Setup
    from harness.workers import WorkerFleet

LONG = 60


class Stage(RedisStage):
    """Tasks that run for long."""

    program = "views"
    conf: ClassVar[dict[str, Any]] = {"lease_extension": 6}


@pytest.fixture
def stage(setup: Setup, valkey: RedisServer, fleet: WorkerFleet) -> Stage:
    """Return an empty broker."""
    return Stage(setup, valkey, fleet)


def test_a_task_that_starts_after_the_command_is_not_handed_over(stage: Stage) -> None:
    """A solo worker's second mailbox keeps the command for which its main loop has answered."""
    stage.worker("solo", 1)
    shell = Shell(stage.app)
    eventually(lambda: stage.listeners() == 3, what="both mailboxes, and its gossip")
    later = stage.send("moves", 2, countdown=2)
    eventually(lambda: stage.queued == 0)
    said = shell.fails("hand-over", later, "-t", "0.5")
    assert "not handed over: it has not started" in said
    stage.ledger.wait("end", later, within=20)
    assert (stage.ledger.count("start", later), stage.ledger.count("told", later)) == (1, 0)


@pytest.mark.compat
@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent", "eventlet", "solo"])
def test_a_task_is_looked_at_and_handed_over(stage: Stage, pool: str) -> None:
    """Its stack names its own function; it ends at a beat, and its next run has its checkpoint.

    The worker goes on, and nothing is counted against the message.
    """
    worker, shell = stage.worker(pool, 1), Shell(stage.app)
    moving = stage.send("moves", LONG)
    stage.ledger.wait("start", moving)

    def asked(*command: str) -> str:
        said: list[str] = []

        def ask() -> bool:
            said.append(shell.result(*command, "-t", "3").output)
            return f"] on {worker.hostname}" in said[-1]

        eventually(ask, what=f"{worker.hostname} hears commands")
        return said[-1]

    looked = asked("stack", moving)
    assert looked.startswith(f"views.moves[{moving}] on {worker.hostname}, process ")
    assert "in moves" in looked
    handed = asked("hand-over", moving)
    assert (
        f"views.moves[{moving}] on {worker.hostname}: its next beat raises ShutdownRequested"
        in handed
    )
    stage.ledger.wait("end", moving, within=20)
    assert stage.app.AsyncResult(moving).get(timeout=10) == "done"
    assert [each.facts for each in stage.ledger.entries("told", moving)] == [
        {"shutting_down": False}
    ]
    starts = [each.facts for each in stage.ledger.entries("start", moving)]
    assert starts == [
        {"deliveries": 1, "restored": None},
        {"deliveries": 2, "restored": "half"},
    ]
    assert stage.app.AsyncResult(stage.send("work", 0.1)).get(timeout=10) == "done"
    eventually(lambda: stage.queued + stage.held == 0)
    assert "Traceback" not in worker.log
