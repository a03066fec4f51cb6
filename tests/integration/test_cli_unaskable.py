"""``celery lease ...`` on the brokers where Celery has no remote control: real ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.lease_desk import Bench
from harness.places import place_of
from harness.shell import Shell

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module", params=["pgmq", "sqs"])
def shell(request: pytest.FixtureRequest) -> Iterator[Shell]:
    """A shell on such a broker, with a queue that has one dead letter and one message."""
    yield from shell_on(request.param, request)


@pytest.fixture(scope="module")
def sqs(request: pytest.FixtureRequest) -> Iterator[Shell]:
    """A shell on the broker that keeps no record either."""
    yield from shell_on("sqs", request)


def shell_on(broker: str, request: pytest.FixtureRequest) -> Iterator[Shell]:
    """Yield a shell."""
    place = place_of(broker, request)
    options = place.setup.conf["broker_transport_options"]
    bench = Bench(place.setup.broker, options)
    with place.app() as app:
        app.send_task("proj.work", task_id="t2")
        with bench.desk(place.queue) as desk:
            (message,) = desk.receive()
            desk.driver.dead_letter(message.claim.tag, f"{place.queue}.dead")
        app.send_task("proj.work", task_id="t1")
        yield Shell(app)
    bench.close()


@pytest.mark.parametrize("command", ["cancel t1", "drain", "drain -d w1@h", "trace"])
def test_what_needs_workers_says_so_in_one_line(shell: Shell, command: str) -> None:
    """What cannot be done, why, and where to look instead; nobody waits for a reply."""
    is_reported(shell, command)


@pytest.mark.parametrize("command", ["status", "top", "top --once"])
def test_what_nobody_can_tell_says_so_in_one_line(sqs: Shell, command: str) -> None:
    """Where there is no record of leases; on pgmq there is one."""
    is_reported(sqs, command)


def is_reported(shell: Shell, command: str) -> None:
    """Check the one line."""
    done = shell.result(*command.split())
    assert done.exit_code == 69
    (line,) = done.output.splitlines()
    assert line.startswith("Error: workers on ")
    assert "cannot be reached by commands: " in line
    assert "see celery -A APP lease explain TASK_ID" in line


def test_a_task_is_explained_as_far_as_it_can_be(sqs: Shell) -> None:
    """By the dead-letter queues, with where to look for the rest."""
    text = sqs.fails("explain", "t1")
    assert "Nobody knows t1: not the dead-letter queues. A worker has it, or it waits in a" in text
    assert "cannot be asked: who holds a task, its last beat and its progress are in" in text


def test_a_dead_letter_is_explained(shell: Shell) -> None:
    """With the way back."""
    text = shell("explain", "t2")
    assert "proj.work[t2] is a dead letter in queue " in text
    assert "celery -A APP lease dead retry t2" in text


def test_what_needs_no_workers_is_done(shell: Shell) -> None:
    """The doctor's checks of all else, and the dead letters."""
    assert "workers cannot be asked: there is no remote control here" in shell("doctor")
    assert "proj.work[t2]" in shell("dead", "list")
    assert "does this by itself" in shell.fails("reap")
