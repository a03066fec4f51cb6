"""What a stored checkpoint looks like, and what may be in one.

A checkpoint is one line of ASCII JSON: version, task name, fencing token, time, and the state. A
version that this code does not know is an error and never a guess. So that workers of two versions
can serve one queue, a release that writes a new version follows one that only reads it.
"""

from __future__ import annotations

import json
from math import isfinite
from typing import TYPE_CHECKING, Any, NamedTuple

from celery_lease.checkpoints.errors import CheckpointTooLarge, CheckpointUnreadable

if TYPE_CHECKING:
    from datetime import datetime

VERSION = 1

#: For readers that take every key of a backend for a task's result; Elasticsearch's is one, which
#: compares states before it overwrites.
STATUS = "CHECKPOINT"

#: Bytes of JSON that a state may have. It crosses the network at every checkpoint and lies in the
#: memory of the store, where results of this size are already a nuisance.
LIMIT = 1_048_576


class Envelope(NamedTuple):
    """A checkpoint as it was read."""

    task: str  #: name of the task that saved it
    token: int  #: fencing token of the run that saved it
    value: Any


def pack(value: Any, *, task_id: str, task: str, token: int, saved: datetime) -> str:
    """Return the text to store.

    Raises:
        TypeError: *value* is not JSON-able; the message names the offending part.
        CheckpointTooLarge: It has more than :data:`LIMIT` bytes.
    """
    text = _json(value, task_id)
    if len(text) > LIMIT:
        raise CheckpointTooLarge(task_id, len(text), LIMIT)
    head = {
        "v": VERSION,
        "status": STATUS,
        "task": task,
        "token": token,
        "saved": saved.isoformat(),
    }
    return f'{json.dumps(head)[:-1]}, "value": {text}}}'


def unpack(text: str | bytes, *, task_id: str) -> Envelope:
    """Read a stored text.

    Raises:
        CheckpointUnreadable: It is damaged, or of another version.
    """
    try:
        stored = json.loads(text)
    except ValueError as exc:
        raise CheckpointUnreadable(task_id, f"it is not JSON ({exc})") from None
    version = stored.get("v") if isinstance(stored, dict) else None
    if version != VERSION:
        wanted = f"this version of celery-lease reads format {VERSION}"
        raise CheckpointUnreadable(task_id, f"its format is {version!r} and {wanted}")
    try:
        return Envelope(str(stored["task"]), int(stored["token"]), stored["value"])
    except (KeyError, TypeError, ValueError) as exc:
        raise CheckpointUnreadable(task_id, f"it is incomplete ({exc!r})") from None


def _json(value: Any, task_id: str) -> str:
    try:
        fault = _fault(value)
    except RecursionError:
        fault = ("", "contains itself, or is nested too deeply")
    if fault is not None:
        path, reason = fault
        raise TypeError(
            f"checkpoint of task {task_id or '?'}: value{path} {reason}; save what JSON has: None, "
            "bool, int, float, str, list, and dict with str keys"
        )
    return json.dumps(value, allow_nan=False, separators=(",", ":"))


def _fault(value: object) -> tuple[str, str] | None:
    """Return where and why *value* is not JSON-able, or None.

    Stricter than ``json.dumps``, which turns the key 5 into "5": a task would look for 5 in vain
    after a crash, and only then. A tuple is taken and comes back as a list.
    """
    if value is None or isinstance(value, (str, int)):
        return None
    if isinstance(value, float):
        return None if isfinite(value) else ("", f"is {value}, which is no JSON number")
    if isinstance(value, dict):
        return _fault_in_dict(value)
    if isinstance(value, (list, tuple)):
        return _first_fault(enumerate(value))
    return "", f"is of type {type(value).__qualname__}"


def _fault_in_dict(value: dict[Any, Any]) -> tuple[str, str] | None:
    for key in value:
        if not isinstance(key, str):
            return "", f"has the key {key!r} of type {type(key).__qualname__}"
    return _first_fault(value.items())


def _first_fault(items: Any) -> tuple[str, str] | None:
    for key, each in items:
        fault = _fault(each)
        if fault is not None:
            path, reason = fault
            return f"[{key!r}]{path}", reason
    return None
