"""What the broker wrote into its append-only file, to tell where a lost message was seen last."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PUSHES = frozenset({b"LPUSH", b"RPUSH"})


def commands(directory: Path) -> Iterator[list[bytes]]:
    """Yield the commands of all incremental files, in their order."""
    paths = directory.glob("appendonlydir/*.incr.aof")
    for path in sorted(paths, key=lambda path: int(path.name.split(".")[-3])):
        with path.open("rb") as lines:
            while (line := lines.readline()).startswith((b"*", b"#")):
                if line.startswith(b"*"):
                    yield [_argument(lines) for _ in range(int(line[1:]))]


def _argument(lines: object) -> bytes:
    length = int(lines.readline()[1:])  # type: ignore[attr-defined]
    return bytes(lines.read(length + 2)[:-2])  # type: ignore[attr-defined]


def last_seen(directory: Path, task_ids: set[str]) -> dict[str, bytes]:
    """Return, for each task, the name of the last command that carried its message's text."""
    wanted = {task_id.encode(): task_id for task_id in task_ids}
    seen: dict[str, bytes] = {}
    for name, *arguments in commands(directory):
        text = b" ".join(arguments)
        for mark, task_id in wanted.items():
            if mark in text:
                seen[task_id] = name.upper()
    return seen


def lost_at_arrival(directory: Path, task_ids: set[str]) -> set[str]:
    """Return the tasks whose message was last pushed to its queue and never claimed after.

    It was popped and then in no place but a connection, or a process that was killed.
    """
    seen = last_seen(directory, task_ids)
    return {task_id for task_id in task_ids if seen.get(task_id) in PUSHES}
