"""What decides on the next tool call. A language model in a real agent, three rules here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call."""

    tool: str
    arguments: dict[str, Any]


def decide(directory: str, transcript: list[dict[str, Any]]) -> Call | None:
    """Return the next call towards "how long are the files in *directory*?", None at the end."""
    if not transcript:
        return Call("list_files", {"directory": directory})
    files: list[str] = transcript[0]["outcome"]
    read = [entry["arguments"]["path"] for entry in transcript if entry["tool"] == "count_lines"]
    left = [file for file in files if file not in read]
    if left:
        return Call("count_lines", {"path": left[0]})
    if transcript[-1]["tool"] != "add":
        return Call("add", {"numbers": [entry["outcome"] for entry in transcript[1:]]})
    return None
