"""Real processes under one parent: signals, order, exit codes, orphans, sudden death."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import psutil
import pytest
from kombu import Connection

from celery_lease.group import Member
from celery_lease.group.__main__ import arguments_for
from harness import ledger as ledgers
from harness.ledger import Ledger
from harness.processes import LocalProcess
from harness.waiting import eventually
from harness.workers import TESTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from harness.setup import Setup

ROOT = TESTS.parent
QUIET = "--without-mingle --without-gossip"
#: Makes a process the one that orphans below it are handed to, as process 1 is. prctl(2)
SUBREAPER = """
import ctypes, os, sys
assert ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) == 0
os.execv(sys.argv[1], sys.argv[1:])
"""


def member(name: str, priority: int, *options: str) -> Member:
    """Return a member that writes what happens to it to the ledger."""
    command = (sys.executable, "-m", "harness.group_member", name, *options)
    return Member(name=name, priority=priority, command=command)


class Group(LocalProcess):
    """A parent and its members."""

    def __init__(
        self, command: Sequence[str], directory: Path, env: dict[str, str] | None = None
    ) -> None:
        path = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))
        self.ledger = Ledger(directory / "ledger.jsonl")
        variables = {"PYTHONPATH": path, ledgers.ENV: str(self.ledger.path), **(env or {})}
        super().__init__(command, directory / "group.log", env=variables)

    def told(self, name: str) -> list[str]:
        """Return the signals that a member got."""
        entries = self.ledger.entries("told")
        return [entry.facts["signal"] for entry in entries if entry.worker == name]

    def order_of(self, *events: str) -> list[str]:
        """Return what happened to whom, of these events, in order."""
        entries = self.ledger.entries()
        return [f"{each.worker} {each.event}" for each in entries if each.event in events]

    def others(self) -> list[psutil.Process]:
        """Return the living processes but the one that was started."""
        return [process for process in self.family() if process.pid != self.pid]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., Group]]:
    """Start a group of members and return it when all are up."""
    groups: list[Group] = []

    def start(
        *members: Member, timeout: float = 60.0, prefix: Sequence[str] = (), up: int | None = None
    ) -> Group:
        arguments = arguments_for(members, timeout)
        command = [*prefix, sys.executable, "-m", "celery_lease.group", *arguments]
        groups.append(group := Group(command, tmp_path))
        group.start()
        group.ledger.wait("up", count=len(members) if up is None else up)
        return group

    yield start
    for group in groups:
        group.close()


def test_members_are_stopped_in_order_and_the_worst_exit_code_is_reported(
    run: Callable[..., Group],
) -> None:
    """The second level hears of it when the first has ended; other signals go to all, any time."""
    group = run(member("last", 2, "--code", "3"), member("first", 1, "--code", "1"))
    group.send(signal.SIGUSR1)
    group.ledger.wait("told", count=2)
    group.term()
    assert group.wait() == 3
    order = group.order_of("told", "end")[2:]
    assert order == ["first told", "first end", "last told", "last end"]
    assert group.told("first") == group.told("last") == ["SIGUSR1", "SIGTERM"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_reaches_all_members_at_once(
    run: Callable[..., Group], number: signal.Signals
) -> None:
    """The first level holds on until it is told twice; only then the second level is told."""
    group = run(member("first", 1, "--needs", "2"), member("last", 2))
    group.send(number)
    group.ledger.wait("told")
    assert group.told("last") == []
    group.send(number)
    assert group.wait() == 0
    assert group.told("first") == [number.name] * 2
    assert group.told("last") == [number.name]


def test_a_terminals_interrupt_reaches_each_member_once(run: Callable[..., Group]) -> None:
    """Ctrl-C goes to the terminal's whole process group: members are not in it."""
    group = run(member("only", 1))
    os.killpg(group.pid, signal.SIGINT)
    assert group.wait() == 0
    assert group.told("only") == ["SIGINT"]


def test_sigquit_reaches_all_members_at_once(run: Callable[..., Group]) -> None:
    """Neither leaves at the first one, and the second level is told all the same."""
    group = run(member("first", 1, "--needs", "2"), member("last", 2, "--needs", "2"))
    group.send(signal.SIGQUIT)
    group.ledger.wait("told", count=2)
    group.send(signal.SIGQUIT)
    assert group.wait() == 0
    assert group.told("first") == group.told("last") == ["SIGQUIT"] * 2


def test_when_one_member_ends_the_others_are_stopped_and_none_is_started_again(
    run: Callable[..., Group],
) -> None:
    """Also when it ended well: a group with a worker missing must not look alive."""
    group = run(member("left", 2), member("stays", 1, "--code", "4"))
    [left] = [entry.pid for entry in group.ledger.entries("up") if entry.worker == "left"]
    os.kill(left, signal.SIGTERM)  # not by the group, which knows of no wish to end
    assert group.wait() == 4
    assert group.told("stays") == ["SIGTERM"]
    assert group.ledger.count("up") == 2


def test_a_member_that_cannot_be_run_ends_the_group(run: Callable[..., Group]) -> None:
    """With a shell's exit code for that, and the program's name in the log."""
    missing = Member(name="missing", command=("/nonexistent/program",), priority=2)
    group = run(missing, up=0)
    assert group.wait() == 127
    assert "cannot run /nonexistent/program" in group.log


def test_a_member_that_does_not_leave_is_killed_with_all_it_started(
    run: Callable[..., Group],
) -> None:
    """SIGTERM, then SIGQUIT, then SIGKILL to its process group; the exit code tells."""
    group = run(member("deaf", 1, "--needs", "99", "--child"), timeout=0.5)
    group.term()
    assert group.wait(30) == 128 + signal.SIGKILL
    assert group.told("deaf") == ["SIGTERM", "SIGQUIT"]
    assert group.others() == []


def test_what_a_dead_member_leaves_behind_ends_with_it(run: Callable[..., Group]) -> None:
    """As the pool of a worker whose main process the kernel killed for its memory."""
    group = run(member("killed", 1, "--child"))
    [entry] = group.ledger.entries("up")
    os.kill(entry.pid, signal.SIGKILL)
    assert group.wait() == 128 + signal.SIGKILL
    eventually(lambda: group.others() == [], what="end of the child")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ties children to their parent")
def test_members_do_not_outlive_a_parent_that_is_killed(run: Callable[..., Group]) -> None:
    """Or the next group would run beside the remains of this one."""
    group = run(member("one", 1, "--needs", "99"), member("two", 2, "--needs", "99"))
    assert len(group.others()) == 2
    group.kill()
    group.wait()
    eventually(lambda: group.others() == [], what="end of the members")
    assert group.told("one") == []


def namespace() -> list[str] | None:
    """Return the command that makes its argument process 1, None where that is not allowed."""
    for user in ([], ["--user", "--map-root-user"]):
        command = ["unshare", *user, "--pid", "--fork", "--mount-proc"]
        if subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0:
            return command
    return None


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has process namespaces")
def test_as_process_1_it_buries_orphans_hears_signals_and_reports_the_exit_code(
    run: Callable[..., Group],
) -> None:
    """As in a container, in a namespace of its own; where none may be made, orphans are handed to
    it in another way.
    """
    inside = namespace()
    prefix = inside or [sys.executable, "-c", SUBREAPER]
    group = run(member("one", 1, "--orphan"), member("two", 2, "--code", "7"), prefix=prefix)
    assert group.order_of("orphan", "buried") == ["one orphan", "one buried"]
    assert group.ledger.entries("orphan")[0].facts["exists"]
    parent = group.pid
    if inside:
        assert {entry.facts["parent"] for entry in group.ledger.entries("up")} == {1}
        [parent] = [child.pid for child in psutil.Process(group.pid).children()]
    os.kill(parent, signal.SIGTERM)
    assert group.wait() == 7
    assert group.order_of("told") == ["one told", "two told"]


@pytest.mark.compat
def test_the_celery_command_runs_real_workers(tmp_path: Path, setup: Setup) -> None:
    """Each is a node of its own name and knows it; they are stopped in order and end well."""
    command = [
        *(sys.executable, "-m", "celery", "-A", "harness.app", "lease", "group"),
        *("-w", f"one:1=-Q one -P solo -l INFO {QUIET}"),
        *("-w", f"two:2=-Q two -c 1 -l INFO {QUIET}"),
    ]
    with Group(command, tmp_path, setup.env()).start() as group, setup.app() as app:
        for name in ("one", "two"):
            app.send_task("stock.early", queue=name)
        entries = group.ledger.wait("end", count=2, within=40)
        assert {entry.worker.partition("@")[0] for entry in entries} == {"one", "two"}
        group.term()
        assert group.wait(30) == 0
    assert group.log.index("one ended with exit code 0") < group.log.index("SIGTERM to two")
    assert group.log.count("Warm shutdown") == 2


def test_the_example_of_consumers_in_one_process_works_as_printed(
    tmp_path: Path, setup: Setup
) -> None:
    """Two plain kombu consumers, each in a thread; SIGTERM ends both and the process, well."""
    page = (ROOT / "docs" / "consumers.md").read_text()
    [code] = [part for part in page.split("```python\n")[1:] if "LoopGroup(" in part]
    program = tmp_path / "consumers.py"
    program.write_text(code.partition("```")[0])
    command = [sys.executable, "-u", str(program)]
    env = {**setup.env(), "BROKER_URL": setup.broker}
    with Group(command, tmp_path, env).start() as process:
        with Connection(setup.broker) as connection:
            for name in ("mail", "video"):
                connection.SimpleQueue(name).put(f"for {name}")
        process.wait_log("mail: for mail").wait_log("video: for video")
        process.term()
        assert process.wait() == 0
