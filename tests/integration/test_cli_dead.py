"""``celery lease dead`` and ``celery lease reap`` on a broker without a worker."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import pytest

from harness.lease_desk import Bench
from harness.ledger import ENV
from harness.processes import LocalProcess
from harness.shell import Shell
from harness.waiting import eventually
from harness.workers import TESTS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from harness.setup import Setup

pytestmark = pytest.mark.compat

TASKS = ("t1", "t2", "t3")


@pytest.fixture
def bench(setup: Setup) -> Iterator[Bench]:
    """The database that the app uses as its broker."""
    bench = Bench(setup.broker)
    yield bench
    bench.close()


@pytest.fixture
def shell(setup: Setup) -> Iterator[Shell]:
    """A shell on that broker."""
    with setup.app() as app:
        yield Shell(app)


def publish(bench: Bench, *tasks: str, **properties: Any) -> None:
    """Send messages as Celery does, as far as anybody looks here."""
    for task in tasks:
        headers = {"id": task, "task": "proj.work"}
        bench.publish([[task], {}, {}], headers=headers, **properties)


@pytest.fixture
def buried(bench: Bench) -> Bench:
    """Three dead letters; one was lost once."""
    desk = bench.desk()
    publish(bench, *TASKS, priority=6)
    messages = desk.receive(3)
    desk.driver.requeue([messages[0].claim.tag], orderly=False, front=True)
    messages[0] = desk.receive()[0]
    for message in messages:
        desk.driver.dead_letter(message.claim.tag, "q.dead")
    desk.stop()
    return bench


def test_dead_letters_are_listed_and_shown_with_their_history(buried: Bench, shell: Shell) -> None:
    """Which task, how often lost, by whom, when, and what it was asked to do."""
    lines = shell("dead", "list").splitlines()
    assert [line.split("  ")[1:] for line in lines] == [
        ["q.dead", "proj.work[t1]", "lost 1 time"],
        ["q.dead", "proj.work[t2]", "lost 0 times"],
        ["q.dead", "proj.work[t3]", "lost 0 times"],
    ]
    done = shell.result("dead", "list", "-q", "other")
    assert (done.stdout, done.stderr) == ("", "no dead letters in other or other.dead\n")
    shown = json.loads(shell("dead", "show", "t1"))
    assert (shown["task"], shown["origin"], shown["losses"]) == ("proj.work", "q", 1)
    assert [each["reason"] for each in shown["history"]] == ["lost"]
    assert "t1" in shown["body"]
    assert "t4" in shell.fails("dead", "show", "t4")
    assert buried.waiting("q.dead") == 3


def test_dead_letters_are_found_by_either_queues_name(buried: Bench, shell: Shell) -> None:
    """The dead-letter queue's, or that of the queue they come from; letters by a part of their id.

    Failed with: nothing is listed for "q".
    """
    publish(buried, "8d2c4f60-7c41-4b0e-9a52-9f5d1c1e1d11")
    desk = buried.desk()
    desk.driver.dead_letter(desk.receive()[0].claim.tag, "q.dead")
    desk.stop()
    whole = shell("dead", "list")
    assert len(whole.splitlines()) == 4
    assert shell("dead", "list", "-q", "q") == shell("dead", "list", "-q", "q.dead") == whole
    assert "1 message replayed" in shell("dead", "retry", "-q", "q", "8d2c")
    assert "no dead letter of task t" in shell.fails("dead", "show", "t")
    assert "a task id is empty" in shell.fails("dead", "retry", "")


def test_a_retried_letter_goes_back_with_a_clean_record(buried: Bench, shell: Shell) -> None:
    """To its queue and priority, once, with nothing counted against it."""
    assert "1 message replayed" in shell("dead", "retry", "t1")
    assert "t1" in shell.fails("dead", "retry", "t1")
    desk = buried.desk()
    (message,) = desk.receive()
    assert message.headers["id"] == "t1"
    assert message.properties["priority"] == 6
    assert (message.claim.deliveries, message.claim.losses) == (1, 0)
    assert "dead" not in message._raw
    assert "2 messages replayed" in shell("dead", "retry", "--all")
    assert [each.headers["id"] for each in desk.receive(2)] == ["t2", "t3"]
    assert shell("dead", "list") == "no dead letters\n"


def test_letters_are_thrown_away_only_on_a_yes(buried: Bench, shell: Shell) -> None:
    """One, then all; and never for want of arguments."""
    shell.fails("dead", "purge")
    shell.fails("dead", "purge", "t1")  # nobody there to say yes
    assert buried.waiting("q.dead") == 3
    assert "1 message discarded" in shell("dead", "purge", "t1", input="y\n")
    assert "2 messages discarded" in shell("dead", "purge", "--all", "--force")
    assert buried.waiting("q.dead") == buried.waiting() == 0


def test_expired_leases_are_returned_by_hand(bench: Bench, shell: Shell) -> None:
    """Once, and after a look that changes nothing."""
    publish(bench, "t1", "t2")
    desk = bench.desk(seconds=0.3)
    desk.receive(2)
    desk.stop()
    eventually(lambda: "would return 2 messages" in shell("reap", "--dry-run"))
    assert bench.waiting() == 0
    assert "returned 2 messages" in shell("reap")
    assert "returned 0 messages" in shell("reap")
    assert bench.waiting() == 2
    shell.fails("reap", "--forever", "--dry-run")


def test_a_broker_that_is_away_is_one_line(shell: Shell) -> None:
    """No traceback for who typed a command."""
    shell.app.conf.broker_url = "redis://127.0.0.1:1/0"
    assert "Traceback" not in shell.fails("reap")
    shell.app.conf.broker_url = "filesystem://"
    assert "redis" in shell.fails("dead", "list")


def test_a_reaper_runs_as_a_process_of_its_own(bench: Bench, setup: Setup, tmp_path: Path) -> None:
    """It returns what expires while it runs, and ends in order on SIGTERM."""
    command = [sys.executable, "-m", "celery", "-A", "harness.app", "lease", "reap", "--forever"]
    env = {**setup.env(), "PYTHONPATH": str(TESTS), ENV: str(tmp_path / "ledger.jsonl")}
    process = LocalProcess([*command, "--interval", "0.1"], tmp_path / "reap.log", env=env)
    process.start()
    publish(bench, "t1")
    desk = bench.desk(seconds=0.5)
    desk.receive()
    desk.stop()
    eventually(lambda: bench.waiting() == 1, within=30, what=process.log)
    process.term()
    assert process.wait(10) == 0
    assert "returned 1 message" in process.log
    process.close()
