"""The times to recover, as text and as a picture."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from benchmarks.chart import STYLE

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Bounds of the classes, in seconds.
BOUNDS = (0, 0.5, 1, 2, 3, 4, 5, 6, 7, 8, 10, 15, 20, 30, 60, float("inf"))
LEFT, ROW, TOP, WIDTH, LONGEST = 110, 24, 62, 700, 500

SVG = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
    'aria-label="{title}">'
)


@dataclass(frozen=True, slots=True)
class Bar:
    """One class and how many times fell into it."""

    label: str
    count: int


def bars(times: Sequence[float]) -> list[Bar]:
    """Sort times into classes, the empty ones at the end left out."""
    found = [Bar(_label(a, b), sum(a <= t < b for t in times)) for a, b in pairwise(BOUNDS)]
    while found and not found[-1].count:
        found.pop()
    return found


def text(times: Sequence[float]) -> str:
    """Return the histogram for a terminal."""
    found = bars(times)
    most = max((bar.count for bar in found), default=1)
    lines = [f"{b.label:>10} {b.count:>5} {'#' * round(50 * b.count / most)}" for b in found]
    return "\n".join([*lines, summary(times)])


def summary(times: Sequence[float]) -> str:
    """Return the usual figures in one line."""
    if not times:
        return "no takeovers"
    line = sorted(times)
    half, most = (line[min(len(line) - 1, int(len(line) * share))] for share in (0.5, 0.95))
    return (
        f"{len(line)} takeovers: median {half:.1f} s, 95 % {most:.1f} s, longest {line[-1]:.1f} s"
    )


def svg(times: Sequence[float], title: str) -> str:
    """Return the histogram as an SVG document for light and dark surroundings."""
    found = bars(times)
    most, height = max((bar.count for bar in found), default=1), TOP + ROW * len(found) + 40
    parts = [
        SVG.format(width=WIDTH, height=height, title=title),
        f"<style>{STYLE}</style>",
        f'<rect class="ground" width="{WIDTH}" height="{height}" rx="8"/>',
        f'<text class="title" x="20" y="30">{title}</text>',
        *(_row(TOP + ROW * number, bar, most) for number, bar in enumerate(found)),
        f'<text class="soft" x="20" y="{height - 14}">{summary(times)}</text>',
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _row(y: int, bar: Bar, most: int) -> str:
    length = max(LONGEST * bar.count / most, 1.0)
    return (
        f'<text class="soft" x="{LEFT - 12}" y="{y + 12}" text-anchor="end">{bar.label}</text>'
        f'<rect x="{LEFT}" y="{y}" width="{length:.1f}" height="16" rx="3" fill="#2a78d6"/>'
        f'<text class="value" x="{LEFT + length + 8:.1f}" y="{y + 13}">{bar.count}</text>'
    )


def _label(low: float, high: float) -> str:
    return f"over {low:g} s" if high == float("inf") else f"{low:g}-{high:g} s"
