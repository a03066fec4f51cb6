"""The tools. One of them is a command, whose output proves that it makes progress."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from celery_lease import current_context

if TYPE_CHECKING:
    from collections.abc import Callable

#: Reads a file slowly, and says so after each line.
READER = """
import sys, time
for number, line in enumerate(open(sys.argv[1]), 1):
    time.sleep(float(sys.argv[2]))
    print(number, flush=True)
"""
SECONDS_A_LINE = 0.02


def list_files(directory: str) -> list[str]:
    """Name the text files in a directory."""
    return sorted(str(path) for path in Path(directory).iterdir() if path.suffix in {".md", ".txt"})


def count_lines(path: str) -> int:
    """Count by a command, which may take longer than a lease as long as it goes on talking."""
    command = [sys.executable, "-c", READER, path, str(SECONDS_A_LINE)]
    done = current_context().run(command, check=True, text=True)
    return int(done.stdout.split()[-1]) if done.stdout else 0


def add(numbers: list[int]) -> int:
    """Add up."""
    return sum(numbers)


TOOLS: dict[str, Callable[..., Any]] = {
    tool.__name__: tool for tool in (list_files, count_lines, add)
}
