"""The points as a picture: panels over the number of leases, both axes by powers of ten.

A column for each broker, a row for each figure.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from benchmarks.chart import STYLE
from growth.page import NAMES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from growth.measure import Point

WIDTH, HEIGHT, LEFT, TOP, GAP = 300, 170, 62, 84, 70
COLOURS = ("#2a78d6", "#c4472d", "#2f8f5b", "#8a5bc4", "#b8860b", "#5a6672", "#d45f9e")

SVG = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
    'aria-label="Server time and calls over the number of leases, at each broker">'
)
ROWS: dict[str, Callable[[Point], float]] = {
    "server, % of a processor": lambda point: point.server_cpu,
    "calls a second": lambda point: point.calls,
    "lag of an extension, s (99.9 %)": lambda point: point.lag or 0.0,
}


def svg(points: Sequence[Point]) -> str:
    """Return an SVG document that reads in light and in dark surroundings."""
    workers = sorted({point.workers for point in points})
    columns = list(dict.fromkeys(point.broker for point in points))
    rows = [title for title, value in ROWS.items() if any(map(value, points))]
    width = LEFT + len(columns) * (WIDTH + GAP)
    height = TOP + len(rows) * (HEIGHT + GAP) + 20
    parts = [
        SVG.format(width=width, height=height),
        f"<style>{STYLE}</style>",
        f'<rect class="ground" width="{width}" height="{height}" rx="8"/>',
        '<text class="title" x="20" y="30">Growth: leases in all, held by so many workers</text>',
    ]
    for row, title in enumerate(rows):
        known = [point for point in points if ROWS[title](point) > 0]
        for column, broker in enumerate(columns):
            own = [point for point in known if point.broker == broker]
            x0, y0 = LEFT + column * (WIDTH + GAP), TOP + row * (HEIGHT + GAP) + HEIGHT
            name = NAMES[broker].partition(",")[0]
            parts += _panel((x0, y0), f"{name}: {title}", own, known, ROWS[title])
    parts += [*_legend(workers, height - 20), "</svg>"]
    return "\n".join(parts) + "\n"


def _panel(
    corner: tuple[int, int],
    title: str,
    points: Sequence[Point],
    all_points: Sequence[Point],
    value: Callable[[Point], float],
) -> Iterator[str]:
    """Draw *points* in the scales and colours of *all_points*."""
    x0, y0 = corner
    workers = sorted({point.workers for point in all_points})
    xs = _decades([p.all_leases for p in all_points])
    ys = _decades([value(p) for p in all_points])

    def place(point: Point) -> tuple[float, float]:
        x = (math.log10(point.all_leases) - xs[0]) / (xs[-1] - xs[0])
        y = (math.log10(value(point)) - ys[0]) / (ys[-1] - ys[0])
        return x0 + x * WIDTH, y0 - y * HEIGHT

    yield f'<text class="value" x="{x0}" y="{y0 - HEIGHT - 14}">{title}</text>'
    for power in xs:
        x = x0 + WIDTH * (power - xs[0]) / (xs[-1] - xs[0])
        yield _label(x, y0 + 20, "middle", power)
    for power in ys:
        y = y0 - HEIGHT * (power - ys[0]) / (ys[-1] - ys[0])
        yield f'<rect class="track" x="{x0}" y="{y:.1f}" width="{WIDTH}" height="1"/>'
        yield _label(x0 - 6, y + 4, "end", power)
    for count, colour in zip(workers, COLOURS, strict=False):
        own = sorted((p for p in points if p.workers == count), key=lambda p: p.leases)
        spots = [place(point) for point in own]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)
        yield f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>'
        for x, y in spots:
            yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>'


def _legend(workers: Sequence[int], y: int) -> Iterator[str]:
    for number, (count, colour) in enumerate(zip(workers, COLOURS, strict=False)):
        x = LEFT + number * 120
        yield f'<circle cx="{x}" cy="{y - 4}" r="5" fill="{colour}"/>'
        yield f'<text x="{x + 12}" y="{y}">{count} worker{"s" * (count > 1)}</text>'


def _label(x: float, y: float, anchor: str, power: int) -> str:
    number = f"{10**power:,}" if power >= 0 else f"{10.0**power:g}"
    return f'<text class="soft" x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}">{number}</text>'


def _decades(values: Sequence[float]) -> list[int]:
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)) - 0.01)
    return list(range(low, max(high, low + 1) + 1))
