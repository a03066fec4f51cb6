"""The stored format of a checkpoint, and the values that it can hold.

A checkpoint is one line of ASCII JSON: version, task name, fencing token, time, the state, and, if
the task has used loops that resume, the places of its loops. Versions of this code before such
loops read the state and ignore the places.

An unknown format is an error and never a guess. So that workers of two versions can serve one
queue, a release that writes a new format follows one that only reads it.
"""

from __future__ import annotations

import json
from math import isfinite
from typing import TYPE_CHECKING, Any, NamedTuple

from celery_lease.task.checkpoints.errors import CheckpointTooLarge, CheckpointUnreadable

if TYPE_CHECKING:
    from datetime import datetime

VERSION = 1

#: For readers that take every key of a backend for a task's result, such as Elasticsearch's
#: backend, which compares states before it overwrites.
STATUS = "CHECKPOINT"

#: The most bytes of JSON in a state. It crosses the network at every checkpoint and is kept in the
#: memory of the store, where results of this size are already a problem.
LIMIT = 1_048_576


class Envelope(NamedTuple):
    """A parsed checkpoint."""

    task: str  #: name of the task that saved it
    token: int  #: fencing token of the run that saved it
    value: Any
    loops: dict[str, Any]  #: the places of its loops, in their stored form
    saved: str = ""  #: when, in ISO 8601


def pack(value: Any, *, task_id: str, task: str, token: int, saved: datetime) -> str:
    """Return the text to store.

    Raises:
        TypeError: *value* is not JSON-able; the message names the offending part.
        CheckpointTooLarge: It has more than :data:`LIMIT` bytes.
    """
    state = to_json(value, task_id)
    return seal(state, {}, task_id=task_id, task=task, token=token, saved=saved)


def seal(
    state: str, loops: dict[str, Any], *, task_id: str, task: str, token: int, saved: datetime
) -> str:
    """Return the text to store, from the JSON of :func:`to_json` and the places of loops.

    Raises:
        CheckpointTooLarge: As :func:`pack`, for both together.
    """
    tail = f', "loops": {json.dumps(loops, separators=(",", ":"))}' if loops else ""
    if (size := len(state) + len(tail)) > LIMIT:
        raise CheckpointTooLarge(task_id, size, LIMIT)
    head = {
        "v": VERSION,
        "status": STATUS,
        "task": task,
        "token": token,
        "saved": saved.isoformat(),
    }
    return f'{json.dumps(head)[:-1]}, "value": {state}{tail}}}'


def unpack(text: str | bytes, *, task_id: str) -> Envelope:
    """Parse a stored text.

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
        loops = dict(stored.get("loops", {}))
        saved = str(stored.get("saved", ""))
        return Envelope(str(stored["task"]), int(stored["token"]), stored["value"], loops, saved)
    except (KeyError, TypeError, ValueError) as exc:
        raise CheckpointUnreadable(task_id, f"it is incomplete ({exc!r})") from None


def to_json(value: Any, task_id: str) -> str:
    """Return the JSON of a state.

    Raises:
        TypeError: As :func:`pack`.
    """
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
    """Return the path and the reason of a part of *value* that is not JSON-able, or None.

    Stricter than ``json.dumps``, which converts the key 5 to "5": after a crash, and only then, a
    task would look for 5 in vain. A tuple is accepted and comes back as a list.
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
