"""Draws a timeline as text or as an SVG picture: one bar for each holder."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

import click

from celery_lease.cli.timeline import HELD, Bar, Timeline

if TYPE_CHECKING:
    from collections.abc import Iterator


#: Bars that are drawn; further ones are only counted. Characters of the text beside a bar.
MOST_BARS, LONGEST_WORDS = 200, 120

#: Colours by the end of a bar: of a terminal, and of the picture.
COLOURS = {
    "completed": ("blue", "#2a78d6"),
    "lost": ("red", "#c4472d"),
    "stalled": ("magenta", "#9b3a78"),
    "ended": ("yellow", "#b7791f"),
    "handed over": ("cyan", "#3b8ea5"),
    "handed back": ("white", "#8a8a85"),
    "dead-lettered": ("bright_black", "#4b3f72"),
    HELD: ("green", "#3a8f5c"),
}

ROW, TOP, LEFT, BAND = 24, 64, 250, 560
#: Pixels of a character; wider than average, so that no font is clipped.
LETTER = 6.9
STYLE = """
  text { font: 13px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #3b3a37 }
  .title { font-size: 16px; font-weight: 600; fill: #0b0b0b }
  .task { font-weight: 600; fill: #0b0b0b }
  .soft { font-size: 12px; fill: #6b6a66 }
  .grid { stroke: #eceae4 }
  .ground { fill: #fcfcfb }
  .waits { opacity: 0.35 }
  @media (prefers-color-scheme: dark) {
    text { fill: #c9c7c0 } .title, .task { fill: #f4f3ef } .soft { fill: #a3a19a }
    .grid { stroke: #2f2e2b } .ground { fill: #1a1a19 }
  }
"""


def text(timeline: Timeline, width: int, *, plain: bool = False) -> Iterator[str]:
    """Yield lines, with colours if the terminal supports them.

    Args:
        timeline: A timeline with at least one bar.
        width: Columns to use.
        plain: Only ASCII.
    """
    first, last = timeline.span()
    tasks, left = _shown(timeline)
    nodes = max(len(bar.worker) for bars in tasks for bar in bars)
    columns = max(10, width - nodes - 50)
    marks = ".#" if plain else "\u2591\u2588"
    yield f"{last - first:.1f} s, from left to right; {marks[0]} waits, {marks[1]} runs"
    for bars in tasks:
        yield f"{bars[0].name}[{bars[0].task_id}]"
        for bar in bars:
            waits, runs, ends = _columns(bar, first, last, columns)
            drawn = marks[0] * (runs - waits) + marks[1] * (ends - runs)
            line = click.style(f"{drawn:<{columns - waits}}", fg=COLOURS[bar.end][0])
            yield f"  {bar.worker:<{nodes}} {' ' * waits}{line} {_label(bar)}"
    if left:
        yield f"and {left} more"


@dataclass(frozen=True, slots=True)
class _Sheet:
    """The measures of a picture, as wide as the texts left and right of the bars need."""

    first: float  #: the time at the bars' left edge, in seconds
    last: float
    left: float  #: pixels
    width: float
    height: float

    @classmethod
    def of(cls, timeline: Timeline, tasks: list[list[Bar]]) -> _Sheet:
        bars = [bar for each in tasks for bar in each]
        left = max(LEFT, 44 + LETTER * max(len(bar.worker) for bar in bars))
        tail = 32 + LETTER * max(len(_brief(bar)) for bar in bars)
        height = TOP + ROW * (len(tasks) + len(bars)) + 56
        return cls(*timeline.span(), left, round(left + BAND + tail), height)

    def x(self, time: float) -> float:
        """Return the horizontal position of a time, in pixels."""
        return self.left + (time - self.first) * BAND / max(self.last - self.first, 1e-9)


def svg(timeline: Timeline) -> str:
    """Return an SVG document for light and dark backgrounds."""
    tasks, left = _shown(timeline)
    sheet = _Sheet.of(timeline, tasks)
    seconds = sheet.last - sheet.first
    title = f"Leases over {seconds:.1f} s" + (f", and {left} more" if left else "")
    size = f"{sheet.width} {sheet.height}"
    view = f'viewBox="0 0 {size}" role="img" aria-label="{title}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {view}>',
            f"<style>{STYLE}</style>",
            f'<rect class="ground" width="{sheet.width}" height="{sheet.height}" rx="8"/>',
            f'<text class="title" x="20" y="30">{title}</text>',
            *_grid(sheet),
            *_rows(tasks, sheet),
            *_legend({bar.end for bars in tasks for bar in bars}, sheet.height - 16),
            "</svg>\n",
        ]
    )


def _shown(timeline: Timeline) -> tuple[list[list[Bar]], int]:
    """Return the first tasks, which are drawn, and the number of bars that are not."""
    shown: list[list[Bar]] = []
    count = 0
    for bars in timeline.tasks():
        if count < MOST_BARS:
            shown.append(bars[: MOST_BARS - count])
            count += len(shown[-1])
    return shown, len(timeline.bars) - count


def _times(bar: Bar, first: float, last: float) -> tuple[float, float, float]:
    """Return the times when a bar begins, when its task starts, and when it ends."""
    begins = first if bar.granted is None else bar.granted
    ends = last if bar.ended is None else bar.ended
    unseen = begins if bar.granted is None else ends
    return begins, min(unseen if bar.started is None else bar.started, ends), ends


def _columns(bar: Bar, first: float, last: float, columns: int) -> tuple[int, int, int]:
    scale = (columns - 1) / max(last - first, 1e-9)
    begins, runs, ends = (round((time - first) * scale) for time in _times(bar, first, last))
    return begins, runs, max(ends, begins + 1)


def _label(bar: Bar) -> str:
    token = "" if bar.token is None else f", token {bar.token}"
    return f"{bar.end}{token}{': ' if bar.why else ''}{bar.why}"


def _brief(bar: Bar) -> str:
    label = _label(bar)
    return label if len(label) <= LONGEST_WORDS else f"{label[: LONGEST_WORDS - 1]}…"


def _grid(sheet: _Sheet) -> Iterator[str]:
    seconds = sheet.last - sheet.first
    step = _step(seconds)
    for number in range(int(seconds / step) + 1):
        x = f"{sheet.x(sheet.first + number * step):.1f}"
        line = f'x1="{x}" x2="{x}" y1="{TOP - 8}" y2="{sheet.height - 44}"'
        yield f'<line class="grid" {line}/>'
        at = f'x="{x}" y="{TOP - 14}" text-anchor="middle"'
        yield f'<text class="soft" {at}>{number * step:g} s</text>'


def _step(seconds: float) -> float:
    """Return a round distance that divides *seconds* into ten parts at most."""
    for step in (0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1800):
        if seconds / step <= 10:  # noqa: PLR2004
            return step
    return 3600.0


def _rows(tasks: list[list[Bar]], sheet: _Sheet) -> Iterator[str]:
    y = TOP + 14
    for bars in tasks:
        about = escape(f"{bars[0].name}[{bars[0].task_id}]")
        yield f'<text class="task" x="20" y="{y}">{about}</text>'
        for bar in bars:
            y += ROW
            yield from _row(bar, y, sheet)
        y += ROW


def _row(bar: Bar, y: int, sheet: _Sheet) -> Iterator[str]:
    begins, runs, ends = map(sheet.x, _times(bar, sheet.first, sheet.last))
    colour = COLOURS[bar.end][1]
    yield f'<text class="soft" x="32" y="{y}">{escape(bar.worker)}</text>'
    for part, x, end in (("waits", begins, runs), ("runs", runs, ends)):
        if end > x:
            yield (
                f'<rect class="{part}" x="{x:.1f}" y="{y - 11}" width="{max(end - x, 1):.1f}" '
                f'height="14" rx="2" fill="{colour}"/>'
            )
    place = f'x="{sheet.left + BAND + 12:.1f}" y="{y}"'
    yield f'<text class="soft" {place}>{escape(_brief(bar))}</text>'


def _legend(ends: set[str], y: float) -> Iterator[str]:
    x = 20
    for end in [each for each in COLOURS if each in ends]:
        yield f'<rect x="{x}" y="{y - 11}" width="14" height="14" rx="2" fill="{COLOURS[end][1]}"/>'
        yield f'<text class="soft" x="{x + 20}" y="{y}">{end}</text>'
        x += 40 + 8 * len(end)
