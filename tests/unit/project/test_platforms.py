"""Windows: no worker holds leases there; who sends tasks, extends leases or tests tasks may be.

Each test is a program of its own, which takes away what Windows lacks before it imports anything of
the package. It also runs on Windows itself, by ``pytest --noconftest`` with its path.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parents[1]

APP = """
import as_on_windows
import sys
from celery import Celery
from celery_lease import LeasedTask, ToolContext

app = Celery("proj", broker="memory://", backend="cache+memory://", set_as_current=True)

@app.task(base=LeasedTask)
def add(x, y, *, context: ToolContext):
    context.beat()
    done = context.run([sys.executable, "-c", "print(input())"], input="said", text=True)
    assert done.stdout == "said\\n", done
    return x + y
"""

#: What only ever runs elsewhere.
POSIX_ONLY = {
    *("celery_lease.cli.group", "celery_lease.group.exec", "celery_lease.group.inbox"),
    *("celery_lease.group.parent", "celery_lease.group.processes", "celery_lease.task.shim"),
    "celery_lease.testing.pytest_celery",
}


def on_windows(program: str, *, status: int = 0) -> str:
    """Run a program as on Windows, and return all that it has written."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path[1:]])}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == status, done.stdout
    return done.stdout


def test_all_but_what_only_posix_systems_run_is_imported() -> None:
    """All public names, the pytest plugin and the commands among it."""
    program = """
import as_on_windows
import importlib, pkgutil, sys
import celery_lease
assert not [name for name in sys.modules if name.startswith("celery_lease.")]
for name in celery_lease.__all__:
    assert getattr(celery_lease, name)
for module in pkgutil.walk_packages(celery_lease.__path__, "celery_lease."):
    if not module.name.endswith("__main__"):
        try:
            importlib.import_module(module.name)
        except (ImportError, AttributeError) as exc:
            missing = isinstance(exc, ModuleNotFoundError) and exc.name.partition(".")[0]
            if not missing or missing in {*sys.stdlib_module_names, "celery_lease"}:
                print(module.name)  # not for want of an extra
"""
    failed = set(on_windows(program).split())
    failed -= {name for name in failed if name.startswith("celery_lease.brokers.pgmq.")}
    assert failed <= POSIX_ONLY


def test_a_task_is_sent_and_run_there() -> None:
    """By ``delay()``, called, and eagerly; its command too."""
    program = APP + "print(add.delay(1, 2).id != '', add(1, 2), add.apply((1, 2)).get())"
    assert on_windows(program).split() == ["True", "3", "3"]


def test_an_extender_extends_there() -> None:
    """By beats, and by its thread."""
    program = """
import as_on_windows
import threading
from celery_lease import Heartbeat, LeaseExtender, LeaseExtenderConfig

extended = threading.Event()

class Message:
    id = "1"
    def extend_visibility(self, seconds):
        print(seconds)
        extended.set()

heartbeat = Heartbeat()
extender = LeaseExtender(LeaseExtenderConfig(interval=0.01, extension=5))
with extender.attach(Message(), heartbeat):
    heartbeat.beat()
    assert extended.is_set()
extended.clear()
with extender.extend(Message()):
    assert extended.wait(30)
"""
    assert set(on_windows(program).split()) == {"5"}


def test_the_pytest_plugin_tests_a_task_there(tmp_path: Path) -> None:
    """With a context that loses its lease, and the assertion of beats."""
    test = """
import pytest
from celery_lease import LeaseLost, leased_task

@leased_task
def work(*, context):
    for _ in context.track(range(5)):
        pass
    return "done"

def test_work(lease_context, assert_beats_within):
    assert work(context=lease_context) == "done"
    assert_beats_within(work)
    lease_context.lose()
    with pytest.raises(LeaseLost):
        work(context=lease_context)
"""
    path = tmp_path / "test_work.py"
    path.write_text(test)
    plugins = ("no:cacheprovider", "no:capture", "no:faulthandler", "no:xdist", "no:celery")
    options = [option for plugin in plugins for option in ("-p", plugin)]
    arguments = [str(path), f"--rootdir={tmp_path}", *options]
    program = f"import as_on_windows, pytest\nraise SystemExit(pytest.main({arguments!r}))"
    assert "1 passed" in on_windows(program)


def test_a_worker_is_refused_there_in_one_line() -> None:
    """Before it takes a message."""
    program = f"{APP}\nworker = app.Worker(pool='solo')\nworker.start()"
    program += "\nraise SystemExit(worker.exitcode)"
    lines = [line for line in on_windows(program, status=1).splitlines() if "CRITICAL" in line]
    assert len(lines) == 1
    assert "worker not started: no worker holds leases on Windows. Run it on Linux" in lines[0]
    assert "lease_enabled = False" in lines[0]


def test_a_worker_without_leases_runs_there() -> None:
    """With ``lease_enabled = False``, until it is told to stop."""
    program = f"""{APP}
from celery import signals
from celery.worker import state

app.conf.lease_enabled = False
add.delay(1, 2)

@signals.task_success.connect(weak=False)
def stop(**_):
    state.should_stop = 0

app.Worker(pool="solo", loglevel="INFO", without_mingle=True, without_gossip=True).start()
"""
    assert re.search(r"succeeded in .*: 3$", on_windows(program), re.MULTILINE)
