"""Commands that a task runs: their output is its progress, and they end with its lease."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import psutil
import pytest

from celery_lease import LeaseLost
from celery_lease.core.loss import FLAG_LOST
from celery_lease.task import subprocesses
from celery_lease.task.current import private_context
from harness.waiting import eventually
from unit.leased import LeasedRun

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PYTHON = [sys.executable, "-S", "-E", "-c"]
CONTEXT = private_context()


@pytest.fixture
def run() -> Iterator[LeasedRun]:
    """Return a run under a lease that is far from its expiry."""
    leased = LeasedRun()
    yield leased
    leased.board.close()


def lose_when(run: LeasedRun, condition: object) -> threading.Thread:
    """Lose the lease from another thread as soon as the condition holds, as the keeper would."""

    def keeper() -> None:
        eventually(condition, 20)  # type: ignore[arg-type]
        run.board.flag(run.slot, FLAG_LOST)

    thread = threading.Thread(target=keeper)
    thread.start()
    return thread


# ----------------------------------------------------------------------------- as subprocess.run


def test_output_is_captured_as_bytes() -> None:
    """Breaks when a result differs from subprocess.run's with capture_output."""
    script = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"
    done = CONTEXT.run([*PYTHON, script])
    assert (done.returncode, done.stdout, done.stderr) == (3, b"out\n", b"err\n")
    assert done.args == [*PYTHON, script]


@pytest.mark.parametrize(
    "mode", [{"text": True}, {"encoding": "utf-8"}, {"universal_newlines": True}]
)
def test_text_mode_decodes_and_translates_newlines(mode: dict[str, object]) -> None:
    """Breaks when text comes out as bytes, or with the line ends of another system."""
    script = r"import sys; sys.stdout.buffer.write('é1\r\n2\r3\n'.encode())"
    assert CONTEXT.run([*PYTHON, script], **mode).stdout == "é1\n2\n3\n"


@pytest.mark.parametrize(
    ("given", "mode"), [(b"in\xff", {}), ("ein€", {"text": True, "encoding": "utf-8"})]
)
def test_input_is_written_to_the_command(given: str | bytes, mode: dict[str, object]) -> None:
    """Breaks when a command waits for input that it was given."""
    script = "import sys; sys.stdout.buffer.write(sys.stdin.buffer.read())"
    assert CONTEXT.run([*PYTHON, script], input=given, **mode).stdout == given


def test_input_that_nobody_reads_is_no_error() -> None:
    """Breaks when a command that ends early fails its task with a broken pipe."""
    assert CONTEXT.run(["true"], input=b"x" * 1_000_000).returncode == 0


def test_input_and_stdin_exclude_each_other() -> None:
    """Breaks when one of the two is silently ignored."""
    with pytest.raises(ValueError, match="stdin and input"):
        CONTEXT.run(["true"], input=b"x", stdin=subprocess.DEVNULL)


def test_a_file_as_stdin_is_passed_on(tmp_path: Path) -> None:
    """Breaks when the user's own stdin is replaced."""
    path = tmp_path / "in"
    path.write_bytes(b"from a file")
    with path.open("rb") as stdin:
        assert CONTEXT.run(["cat"], stdin=stdin).stdout == b"from a file"


def test_an_open_stdin_pipe_without_input_is_closed() -> None:
    """Breaks when a command that reads to the end of its input never ends."""
    assert CONTEXT.run(["cat"], stdin=subprocess.PIPE).stdout == b""


def test_directory_and_environment_are_passed_on(tmp_path: Path) -> None:
    """Breaks when an argument of Popen is dropped on the way."""
    done = CONTEXT.run("echo $WORD; pwd", shell=True, cwd=tmp_path, env={"WORD": "w"}, text=True)
    assert done.stdout.split() == ["w", str(tmp_path)]


def test_output_may_go_elsewhere(tmp_path: Path) -> None:
    """Breaks when a file, DEVNULL or STDOUT of the user's choice is overridden."""
    script = "import sys; print('out'); sys.stdout.flush(); print('err', file=sys.stderr)"
    with (tmp_path / "out").open("wb") as out:
        done = CONTEXT.run([*PYTHON, script], stdout=out)
    assert (done.stdout, done.stderr) == (None, b"err\n")
    assert (tmp_path / "out").read_bytes() == b"out\n"
    nowhere = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    assert CONTEXT.run([*PYTHON, script], **nowhere).stdout is None
    assert CONTEXT.run([*PYTHON, script], stderr=subprocess.STDOUT).stdout == b"out\nerr\n"


def test_capture_output_may_be_written_out_or_switched_off(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Breaks when a call that was subprocess.run's fails on its most common argument."""
    assert CONTEXT.run(["echo", "kept"], capture_output=True).stdout == b"kept\n"
    assert CONTEXT.run(["echo", "seen"], capture_output=False).stdout is None
    assert capfd.readouterr().out == "seen\n"


def test_much_output_on_both_pipes_does_not_block() -> None:
    """Breaks when one pipe fills up while the other is read."""
    script = (
        "import sys\n"
        "for n in range(64):\n"
        "    sys.stderr.write('e' * 65536); sys.stdout.write('o' * 65536)"
    )
    done = CONTEXT.run([*PYTHON, script])
    assert (len(done.stdout), len(done.stderr)) == (4 << 20, 4 << 20)


def test_check_raises_with_the_output() -> None:
    """Breaks when a failure is passed over, or cannot be explained from its error."""
    with pytest.raises(subprocess.CalledProcessError) as caught:
        CONTEXT.run("echo out; echo err >&2; exit 7", shell=True, check=True)
    assert caught.value.returncode == 7
    assert (caught.value.output, caught.value.stderr) == (b"out\n", b"err\n")


def test_a_command_that_does_not_exist_is_the_usual_error() -> None:
    """Breaks when a mistake in the command looks like anything else."""
    with pytest.raises(FileNotFoundError):
        CONTEXT.run(["no-such-command-anywhere"])


def test_a_timeout_ends_the_command_and_keeps_what_it_wrote() -> None:
    """Breaks when a command outlives its timeout, or its output is lost with it."""
    with pytest.raises(subprocess.TimeoutExpired) as caught:
        CONTEXT.run("echo begun; exec sleep 600", shell=True, timeout=0.5)
    assert caught.value.output == b"begun\n"
    assert caught.value.timeout == 0.5


# ------------------------------------------------------------------------------ output is progress


def test_output_beats(run: LeasedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks when a command that works, and says so, loses its task's lease.

    Two lines, the second after the test has seen the first one's beat.
    """
    reader, writer = os.pipe()
    silenced = threading.Event()

    def keeper() -> None:
        assert silenced.wait(20)
        run.silence()
        os.write(writer, b"go\n")
        eventually(lambda: run.beats_lately, 20)
        os.write(writer, b"end\n")

    beats: list[int] = []
    real = run.context.beat
    monkeypatch.setattr(run.context, "beat", lambda: (beats.append(1), silenced.set(), real())[2])
    thread = threading.Thread(target=keeper)
    thread.start()
    done = run.context.run("read x; printf .; read x", shell=True, stdin=reader, text=True)
    thread.join(20)
    os.close(reader)
    os.close(writer)
    assert done.stdout == "."
    assert len(beats) == 3  # at the start, for the dot without a newline, at the end


@pytest.mark.parametrize(
    "where", [{}, {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}]
)
def test_a_silent_command_does_not_beat(
    run: LeasedRun, monkeypatch: pytest.MonkeyPatch, where: dict[str, int]
) -> None:
    """Breaks when a command that hangs keeps its task's lease for ever (I2).

    With ``context.beat()`` for ``context.check()`` in ``_watch``, it beat five times a second.
    """
    looks, beats = [], []
    ends = threading.Event()

    def check() -> None:
        looks.append(1)
        if len(looks) == 3:
            ends.set()
            raise KeyboardInterrupt

    monkeypatch.setattr(run.context, "check", check)
    monkeypatch.setattr(run.context, "beat", lambda: beats.append(1))
    monkeypatch.setattr(subprocesses, "LOOK_INTERVAL", 0.01)
    with pytest.raises(KeyboardInterrupt):
        run.context.run(["sleep", "600"], **where)
    assert ends.is_set()
    assert len(beats) == 1  # the one before it


def test_a_short_command_is_not_waited_for_longer_than_it_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Breaks when the end of a command is noticed only at the next look at the lease."""
    monkeypatch.setattr(subprocesses, "LOOK_INTERVAL", 60.0)
    for command in ("true", "echo done", "echo done >&2; exit 1"):
        CONTEXT.run(command, shell=True, stdin=subprocess.PIPE)


# ----------------------------------------------------------------------------- the end of the lease


def test_a_lost_lease_ends_the_command(run: LeasedRun, tmp_path: Path) -> None:
    """Breaks when a command goes on changing things for a task whose message is elsewhere."""
    path = tmp_path / "pid"
    thread = lose_when(run, lambda: path.exists() and path.read_text().endswith("\n"))
    with pytest.raises(LeaseLost):
        run.context.run(f"echo $$ > {path}; exec sleep 600", shell=True)
    thread.join(20)
    assert not psutil.pid_exists(int(path.read_text()))


def test_a_lost_lease_ends_everything_that_the_command_started(
    run: LeasedRun, tmp_path: Path
) -> None:
    """Breaks when only a shell is ended and the work it started goes on, or its pipe blocks us.

    Without ``process_group=0``, the sleeping child lived on and ``run`` waited for its output.
    """
    path = tmp_path / "pid"
    thread = lose_when(run, lambda: path.exists() and path.read_text().endswith("\n"))
    with pytest.raises(LeaseLost):
        run.context.run(f"sleep 600 & echo $! > {path}; wait", shell=True)
    thread.join(20)
    eventually(lambda: not runs(int(path.read_text())), what="end of the shell's child")


def runs(pid: int) -> bool:
    """Return whether a process does anything still; a zombie does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


STUBBORN = (
    "import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True); time.sleep(600)"
)


def test_a_command_that_ignores_being_asked_is_killed(
    run: LeasedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Breaks when a command that catches SIGTERM outlives its lease."""
    monkeypatch.setattr(subprocesses, "GRACE", 0.3)
    processes: list[subprocess.Popen[bytes]] = []
    started(monkeypatch, processes)
    lose_at_first_output(run, monkeypatch)
    with pytest.raises(LeaseLost):
        run.context.run([*PYTHON, STUBBORN])
    assert processes[0].returncode == -signal.SIGKILL


POLITE = (
    "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(0));"
    "print(1, flush=True); time.sleep(600)"
)


def test_a_command_that_obeys_is_given_time_to_clean_up(
    run: LeasedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Breaks when a command is killed before it could remove what it left half done."""
    processes: list[subprocess.Popen[bytes]] = []
    started(monkeypatch, processes)
    lose_at_first_output(run, monkeypatch)
    with pytest.raises(LeaseLost):
        run.context.run([*PYTHON, POLITE])
    assert processes[0].returncode == 0


def started(monkeypatch: pytest.MonkeyPatch, processes: list[subprocess.Popen[bytes]]) -> None:
    """Keep every process that is started."""
    real = subprocess.Popen

    def popen(*args: object, **kwargs: object) -> subprocess.Popen[bytes]:
        processes.append(real(*args, **kwargs))  # type: ignore[call-overload]
        return processes[-1]

    monkeypatch.setattr(subprocess, "Popen", popen)


def lose_at_first_output(run: LeasedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lose the lease when the command has said that it is ready."""
    real = run.context.beat
    beats: list[int] = []

    def beat() -> None:
        beats.append(1)
        if len(beats) > 1:
            run.board.flag(run.slot, FLAG_LOST)
        real()

    monkeypatch.setattr(run.context, "beat", beat)


def test_a_process_that_escaped_does_not_hold_the_task(
    run: LeasedRun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Breaks when a daemon that kept the pipe open blocks a task that lost its lease."""
    monkeypatch.setattr(subprocesses, "GRACE", 0.3)
    path = tmp_path / "pid"
    script = (
        "import os, time\n"
        "if os.fork() == 0:\n"
        f"    os.setsid(); open({str(path)!r}, 'w').write(str(os.getpid())); print(1, flush=True)\n"
        "time.sleep(600)"
    )
    lose_at_first_output(run, monkeypatch)
    with pytest.raises(LeaseLost):
        run.context.run([*PYTHON, script])
    assert not runs(int(path.read_text()))


@pytest.mark.parametrize("choice", [{"start_new_session": True}, {"process_group": 0}, {}])
def test_a_command_has_a_group_of_its_own(choice: dict[str, object]) -> None:
    """Breaks when ending a command could end its worker too."""
    script = "import os; print(os.getpgid(0) == os.getpid())"
    assert CONTEXT.run([*PYTHON, script], text=True, **choice).stdout == "True\n"


def test_in_a_group_with_others_the_command_alone_is_ended(
    run: LeasedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Breaks when a command that the user left in the worker's group takes the worker with it."""
    processes: list[subprocess.Popen[bytes]] = []
    started(monkeypatch, processes)
    lose_at_first_output(run, monkeypatch)
    with pytest.raises(LeaseLost):
        run.context.run([*PYTHON, POLITE], start_new_session=False)
    assert processes[0].returncode == 0  # and this process is alive


def test_a_lost_lease_starts_no_command(run: LeasedRun, tmp_path: Path) -> None:
    """Breaks when a task without a lease still begins something new."""
    run.expire()
    with pytest.raises(LeaseLost):
        run.context.run(["touch", str(tmp_path / "made")])
    assert not (tmp_path / "made").exists()


# ------------------------------------------------------------------------------ ends with its task

#: A shell, a child of it that ignores being asked, one in a session of its own, an orphan.
FAMILY = (
    "trap '' TERM; echo $$ >> {pids}; sleep 600 & echo $! >> {pids};"
    "setsid sh -c 'echo $$ >> {pids}; exec sleep 600' & "
    "(setsid sh -c 'echo $$ >> {pids}; exec sleep 600 >/dev/null 2>&1' &); wait"
)
TASK = """
import sys
green, pids, quiet, command = sys.argv[1:]
if green == "gevent":
    from gevent import monkey; monkey.patch_all()
elif green == "eventlet":
    import eventlet; eventlet.monkey_patch()
from celery_lease.task.current import private_context
context = private_context()
if quiet:
    with context.quiet(600):
        context.run(command, shell=True)
context.run(command, shell=True)
"""


@pytest.mark.parametrize("green", ["", "gevent", "eventlet"])
@pytest.mark.parametrize("quiet", ["", "quiet"])
def test_a_command_ends_with_the_process_of_its_task(
    tmp_path: Path, green: str, quiet: str
) -> None:
    """Breaks when what a killed worker had started goes on beside its successor."""
    pids = tmp_path / "pids"
    command = FAMILY.format(pids=pids)
    call = [sys.executable, "-W", "ignore", "-c", TASK, green, str(pids), quiet, command]
    with subprocess.Popen(call) as task:
        eventually(lambda: pids.exists() and pids.read_text().count("\n") == 4, 60)
        started = [int(each) for each in pids.read_text().split()]
        assert all(map(runs, started))
        task.kill()
    eventually(lambda: not any(map(runs, started)), 20, what=f"end of {started}")


GREEN = """
import sys
if sys.argv[1] == "gevent":
    from gevent import monkey; monkey.patch_all()
else:
    import eventlet; eventlet.monkey_patch()
import subprocess
from threading import Thread
from celery_lease.task.current import private_context
context = private_context()
beside = []
thread = Thread(target=lambda: beside.append(context.run(["sleep", "0.5"]).returncode))
thread.start()
done = context.run(["sh", "-c", "cat; echo err >&2; exit 3"], input="x\\ny" * 50000, text=True)
assert (done.returncode, done.stdout, done.stderr) == (3, "x\\ny" * 50000, "err\\n"), done
assert context.run(["true"], input=b"x" * 1000000).returncode == 0
assert context.run(["echo", "bytes"]).stdout == b"bytes\\n"
try:
    context.run(["sleep", "600"], timeout=0.2)
except subprocess.TimeoutExpired as exc:
    assert exc.cmd == ["sleep", "600"]
try:
    context.run(["does-not-exist"])
except FileNotFoundError as exc:
    assert exc.filename == "does-not-exist"
thread.join()
assert beside == [0]
print("all", end="")
"""


@pytest.mark.parametrize("green", ["gevent", "eventlet"])
def test_green_threads_run_commands(green: str) -> None:
    """Breaks when a pipe is read in a way that one of these libraries does not know."""
    call = [sys.executable, "-W", "ignore", "-c", GREEN.replace("\\\\", "\\"), green]
    done = subprocess.run(call, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stdout) == (0, "all"), done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGUSR1])
def test_the_signal_that_ended_a_command_is_told(number: signal.Signals) -> None:
    """Breaks when a killed command looks like one that exited."""
    assert CONTEXT.run(["sh", "-c", f"kill -{number} $$"]).returncode == -number


def test_a_signal_is_passed_on_to_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks when who asks a command to end, by the process that a monitor shows, ends the shim."""
    processes: list[subprocess.Popen[bytes]] = []
    started(monkeypatch, processes)
    beat = CONTEXT.beat
    sent: list[int] = []

    def send_at_first_output() -> None:
        beat()
        if processes and not sent:
            sent.append(1)
            processes[0].send_signal(signal.SIGTERM)

    monkeypatch.setattr(CONTEXT, "beat", send_at_first_output)
    script = POLITE.replace("sys.exit(0)", "sys.exit(7)")
    assert CONTEXT.run([*PYTHON, script]).returncode == 7


def test_what_a_command_left_in_the_background_is_let_go(tmp_path: Path) -> None:
    """Breaks when a program that starts a daemon for others cannot be run."""
    path = tmp_path / "pid"
    CONTEXT.run(f"setsid sleep 600 >/dev/null 2>&1 & echo $! > {path}", shell=True)
    left = int(path.read_text())
    assert runs(left)
    os.kill(left, signal.SIGKILL)


def test_a_descriptor_is_passed_on() -> None:
    """Breaks when the process in between keeps what is meant for the command."""
    ours, theirs = os.pipe()
    with os.fdopen(ours) as file:
        script = f"import os; os.write({theirs}, b'given')"
        CONTEXT.run([*PYTHON, script], pass_fds=(theirs,))
        os.close(theirs)
        assert file.read() == "given"


def test_the_command_has_no_other_descriptors_than_its_author_gave() -> None:
    """Breaks when a command holds the socket by which its end is noticed."""
    done = CONTEXT.run(["sh", "-c", "ls -l /proc/self/fd"], text=True)
    assert "socket" not in done.stdout
