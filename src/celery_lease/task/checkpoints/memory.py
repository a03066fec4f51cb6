"""Checkpoints of runs that are never resumed: a direct call, an eager task, a test."""

from __future__ import annotations


class MemoryStore:
    """Keeps the checkpoint of one run for the lifetime of its context."""

    name = "memory"

    def __init__(self) -> None:
        self._text: str | bytes | None = None

    def save(self, _task_id: str, _token: int, text: str) -> bool:
        self._text = text
        return True

    def load(self, _task_id: str, _token: int) -> tuple[bool, str | bytes | None]:
        return True, self._text

    def peek(self, _task_id: str) -> str | bytes | None:
        return self._text

    def forget(self, _task_id: str, _token: int) -> bool:
        self._text = None
        return True

    def retire(self, _task_id: str, _token: int) -> bool:
        return True
