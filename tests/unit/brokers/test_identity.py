"""What can be known of a worker that no longer extends a lease."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from celery_lease.brokers import identity
from celery_lease.brokers.identity import cause_of_expiry

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux marks its hosts")


def of(pid: int, node: str = "a@h") -> str:
    """Return an identity of a worker on this host."""
    return identity.identity(node).replace(f":{os.getpid()}:", f":{pid}:")


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """Stands for the main process of a worker."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def test_a_worker_on_this_host_is_known_by_its_process(process: subprocess.Popen[bytes]) -> None:
    """Whether it is there, stands still, or is gone, also before its parent has heard of that."""
    holder, asker = of(process.pid), identity.identity("b@h")
    assert cause_of_expiry(holder, asker) == identity.EXISTS
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
    assert cause_of_expiry(holder, asker) == identity.STOPPED
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert cause_of_expiry(holder, asker) == identity.DIED
    process.wait()
    assert cause_of_expiry(holder, asker) == identity.DIED
    assert cause_of_expiry(holder, "") == identity.DIED, "a command asks"


def test_of_a_worker_elsewhere_only_a_successor_knows_that_it_died() -> None:
    """Under its name; the process of that number on this host is another's."""
    asker = identity.identity("a@h")
    for marks in ("0123456789ab", "abcdef12"):
        assert cause_of_expiry(f"a@h:{os.getpid()}:{marks}", asker) == identity.DIED
        assert cause_of_expiry(f"b@h:{os.getpid()}:{marks}", asker) == identity.UNKNOWN
        assert cause_of_expiry(f"a@h:{os.getpid()}:{marks}", "") == identity.UNKNOWN
    assert cause_of_expiry("of some other program", asker) == identity.UNKNOWN


def test_a_worker_knows_better_of_itself() -> None:
    """Its own registry tells; and it did not die as it was started again in its process."""
    asker = identity.identity("a@h")
    assert cause_of_expiry(asker, asker) == ""
    assert cause_of_expiry(identity.identity("a@h"), asker) == identity.RESTARTED
