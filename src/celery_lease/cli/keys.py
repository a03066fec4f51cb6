"""Reads single keys from a terminal, without waiting for a line."""

from __future__ import annotations

import os
import select
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def pressed() -> Iterator[Callable[[float], str]]:
    """Yield a function that waits for a key, for so many seconds, and returns it or "".

    Without a terminal it only waits. The terminal's mode is restored at the end, also after an
    error.
    """
    try:
        import termios  # noqa: PLC0415  (not on every system)
        import tty  # noqa: PLC0415
    except ImportError:
        yield _nothing
        return
    if not sys.stdin.isatty():
        yield _nothing
        return
    stdin = sys.stdin.fileno()
    before = termios.tcgetattr(stdin)
    try:
        tty.setcbreak(stdin)
        yield lambda seconds: _key(stdin, seconds)
    finally:
        termios.tcsetattr(stdin, termios.TCSADRAIN, before)


def _key(stdin: int, seconds: float) -> str:
    ready, _, _ = select.select([stdin], [], [], seconds)
    return os.read(stdin, 1).decode(errors="replace") if ready else ""


def _nothing(seconds: float) -> str:
    select.select([], [], [], seconds)
    return ""
