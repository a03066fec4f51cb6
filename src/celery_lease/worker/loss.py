"""Collects the facts of a loss, for the log, events and the dead letter."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from celery_lease.core.words import storable

if TYPE_CHECKING:
    from celery_lease.board import Board
    from celery_lease.worker.entries import LeaseEntry

#: Characters of a stack that go with the message.
LONGEST_STACK = 2000

#: How billiard 4.2 and 4.3 report a process's end (``billiard.common.human_status``).
_ENDED = re.compile(r"signal (?P<number>\d+)(?: \((?P<signal>\w+)\))?|exitcode (?P<code>\d+)")


def cause_of_death(report: object) -> str:
    """Return the exit code or signal in a pool's text about a process; other texts unchanged."""
    found = _ENDED.search(str(report))
    if found is None:
        return str(report)
    if found["code"]:
        return f"exit code {found['code']}"
    name = found["signal"] or f"signal {found['number']}"
    return f"{name}, perhaps out of memory" if name == "SIGKILL" else name


def facts(board: Board, entry: LeaseEntry, cause: str, stack: str = "") -> dict[str, object]:
    """Return the known facts of a loss: cause, note, progress, stack."""
    progress = board.read_progress(entry.slot) if entry.slot else None
    known = {
        "cause": storable(cause),
        "note": storable(progress.note) if progress else "",
        "done": progress.done if progress else None,
        "total": progress.total if progress else None,
        "stack": storable(stack[:LONGEST_STACK]),
    }
    return {name: value for name, value in known.items() if value not in (None, "", math.inf)}


def in_words(why: dict[str, object]) -> str:
    """Return the facts of a loss in one line, without the stack."""
    text = str(why.get("cause", "unknown"))
    if "note" in why:
        text += f"; its last note: {why['note']!r}"
    if "done" in why:
        text += f"; {why['done']:g} done" + (f" of {why['total']:g}" if "total" in why else "")
    return text
