"""What the operating system says of a task process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

from celery_lease.worker.processes import is_alive


def test_this_process_is_alive() -> None:
    """Its own state reads as running."""
    assert is_alive(os.getpid())


def test_an_unknown_process_is_not_alive() -> None:
    """No process id, or one beyond the largest, is nobody."""
    assert not is_alive(None)
    assert not is_alive(2**22 + 1)


def test_a_paused_or_dead_process_is_not_alive() -> None:
    """Stopped, continued, killed and not yet waited for, and gone: alive only in between."""
    with subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=-1
    ) as child:
        os.kill(child.pid, signal.SIGSTOP)
        os.waitpid(child.pid, os.WUNTRACED)
        stopped = is_alive(child.pid)
        os.kill(child.pid, signal.SIGCONT)
        os.waitpid(child.pid, os.WCONTINUED)
        continued = is_alive(child.pid)
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        zombie = is_alive(child.pid)
    assert (stopped, continued, zombie, is_alive(child.pid)) == (False, True, False, False)


@pytest.mark.parametrize("hidden", [FileNotFoundError, PermissionError])
def test_a_process_whose_files_are_hidden_is_asked_for_as_a_child(
    monkeypatch: pytest.MonkeyPatch, hidden: type[OSError]
) -> None:
    """Living, stopped, continued, ended, gone; and none of it is taken from who waits for it."""
    monkeypatch.setattr(Path, "read_text", mock.Mock(side_effect=hidden))
    with subprocess.Popen(
        [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=-1
    ) as child:
        states = [is_alive(child.pid)]
        os.kill(child.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
        states.append(is_alive(child.pid))
        os.kill(child.pid, signal.SIGCONT)
        os.waitid(os.P_PID, child.pid, os.WCONTINUED | os.WNOWAIT)
        states.append(is_alive(child.pid))
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        states.append(is_alive(child.pid))
        assert os.waitpid(child.pid, 0) == (child.pid, signal.SIGKILL)
        child.returncode = -signal.SIGKILL
    assert [*states, is_alive(child.pid)] == [True, False, True, False, False]
    assert is_alive(os.getpid())
    assert not is_alive(2**22 + 1)
