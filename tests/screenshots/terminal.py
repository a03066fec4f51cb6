"""Runs a command on a terminal of its own and draws what the terminal shows."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import termios
from contextlib import suppress
from itertools import groupby
from typing import TYPE_CHECKING

import pyte
from rich.console import Console
from rich.style import Style
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pyte.screens import Char

COLUMNS, ROWS = 110, 60  #: of a terminal
#: Seconds that a command has to end after its last output.
PATIENCE = 10.0
#: Names of colours that a terminal and rich call differently.
COLOURS = {"brown": "yellow", "default": None}
#: Fonts from elsewhere: a picture of a page does not load them, and a page should not.
FONT_FACE = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


def show(command: Sequence[str], env: Mapping[str, str]) -> Text:
    """Return what a command leaves on the screen."""
    screen = pyte.Screen(COLUMNS, ROWS)
    stream = pyte.ByteStream(screen)
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    terminal = {"TERM": "xterm-256color", "COLORTERM": "truecolor"}
    process = subprocess.Popen(
        command,
        stdin=theirs,
        stdout=theirs,
        stderr=subprocess.STDOUT,
        env={**env, **terminal},
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509
    )
    os.close(theirs)
    try:
        _feed(ours, stream)
        process.wait(PATIENCE)
    finally:
        process.kill()
        os.close(ours)
    return _text(screen)


def draw(shown: Text, title: str, path: Path) -> None:
    """Write a screen into an SVG file."""
    columns = max(map(len, shown.plain.splitlines())) + 1
    console = Console(record=True, width=columns, file=io.StringIO(), force_terminal=True)
    console.print(shown, no_wrap=True, overflow="crop", highlight=False)
    path.write_text(FONT_FACE.sub("", console.export_svg(title=title, unique_id=path.stem)))


def _feed(ours: int, stream: pyte.ByteStream) -> None:
    """Let the screen show what comes until the program ends."""
    with suppress(OSError):  # the other end is closed
        while data := os.read(ours, 65536):
            stream.feed(data)


def _text(screen: pyte.Screen) -> Text:
    lines = []
    for row in range(screen.lines):
        line = Text()
        cells = [screen.buffer[row][column] for column in range(screen.columns)]
        for style, run in groupby(cells, _style):
            line.append("".join(cell.data for cell in run), style)
        line.rstrip()
        lines.append(line)
    while lines and not lines[-1].plain:
        lines.pop()
    return Text("\n").join(lines)


def _style(cell: Char) -> Style:
    return Style(
        color=_colour(cell.fg), bgcolor=_colour(cell.bg), bold=cell.bold, reverse=cell.reverse
    )


def _colour(name: str) -> str | None:
    if re.fullmatch(r"[0-9a-f]{6}", name):
        return f"#{name}"
    bright = re.fullmatch(r"bright(\w+)", name)
    name = bright[1] if bright else name
    plain = COLOURS.get(name, name)
    return f"bright_{plain}" if bright and plain else plain
