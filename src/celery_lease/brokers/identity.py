"""The identity of a worker, and what can be known by it of a worker that no longer extends a lease.

An identity is ``NODE:PROCESS:MARKS``: six digits for the host and its table of processes, and six
of chance. By the first six a worker knows that it could see the other's process, so it can tell one
that died from one that still exists. Earlier versions wrote eight digits of chance.
"""

from __future__ import annotations

import hashlib
import os
import re
import uuid
from functools import cache
from pathlib import Path

_IDENTITY = re.compile(r"(?P<node>.*):(?P<pid>\d+):(?P<marks>[0-9a-f]+)", re.DOTALL)
_HOST, _CHANCE = 6, 6  # digits

DIED = "its worker died"
RESTARTED = "its worker was started again or connected again"
STOPPED = "its worker stands still: its process was stopped"
EXISTS = "its worker still exists, but did not extend it"
UNKNOWN = (
    "its worker did not extend it: it died, stood still or was cut off, or the task did not beat"
)


def identity(node: str) -> str:
    """Return a new identity of a worker in this process."""
    return f"{node}:{os.getpid()}:{_host()}{uuid.uuid4().hex[:_CHANCE]}"


def cause_of_expiry(holder: str, asker: str) -> str:
    """Return why *holder* did not extend a lease, as far as *asker* can know; "": it is itself.

    Args:
        holder: The identity of a worker.
        asker: That of the worker in this process; "": none is.
    """
    if holder == asker:
        return ""
    found, own = _IDENTITY.fullmatch(holder), _IDENTITY.fullmatch(asker)
    if found is None:
        return UNKNOWN
    marks, pid = found["marks"], int(found["pid"])
    if len(marks) == _HOST + _CHANCE and marks.startswith(_host()):
        return _state_of(pid)
    return DIED if own is not None and own["node"] == found["node"] else UNKNOWN


def _state_of(pid: int) -> str:
    """Return what is known of a worker by its process on this host."""
    if pid == os.getpid():
        return RESTARTED
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return DIED
    except PermissionError:
        pass
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:  # hidden, or it has just ended
        return EXISTS
    state = stat[stat.rindex(")") + 2]  # the command's name, in parentheses, may hold anything
    return DIED if state in "ZXx" else STOPPED if state in "Tt" else EXISTS


@cache
def _host() -> str:
    """Return digits for this host and its table of processes; of chance if it tells nothing."""
    try:
        told = Path("/proc/sys/kernel/random/boot_id").read_text()
        told += str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        told = uuid.uuid4().hex
    return hashlib.sha256(told.encode()).hexdigest()[:_HOST]
