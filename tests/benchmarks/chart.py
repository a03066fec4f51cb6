"""The figures as a picture: one bar each, as long as the share of its target that was used."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from benchmarks.figures import Figure

WIDTH, ROW, TOP, BOTTOM = 880, 46, 64, 44
LEFT, UNIT = 20, 500.0  # of the bars; length of a bar that meets its target exactly
LONGEST = 1.25  # a bar that is longer ends here; its text tells by how much
MET, MISSED, SKIPPED = "#2a78d6", "#c4472d", "#8a8a85"

TITLE = "Share of each target that is used; shorter is better"
SVG = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
    'aria-label="Measured figures as shares of their targets">'
)
STYLE = """
  text { font: 13px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #3b3a37 }
  .title { font-size: 16px; font-weight: 600; fill: #0b0b0b }
  .value { font-weight: 600; fill: #0b0b0b }
  .soft { fill: #6b6a66 }
  .track { fill: #eceae4 }
  .limit { stroke: #0b0b0b; stroke-width: 1.5; stroke-dasharray: 4 3 }
  .ground { fill: #fcfcfb }
  @media (prefers-color-scheme: dark) {
    text { fill: #c9c7c0 } .title, .value { fill: #f4f3ef } .soft { fill: #a3a19a }
    .track { fill: #2f2e2b } .limit { stroke: #f4f3ef } .ground { fill: #1a1a19 }
  }
"""


def svg(figures: Sequence[Figure]) -> str:
    """Return an SVG document that reads in light and in dark surroundings."""
    height = TOP + ROW * len(figures) + BOTTOM
    limit = LEFT + UNIT
    end = TOP + ROW * len(figures)
    parts = [
        SVG.format(width=WIDTH, height=height),
        f"<style>{STYLE}</style>",
        f'<rect class="ground" width="{WIDTH}" height="{height}" rx="8"/>',
        f'<text class="title" x="{LEFT}" y="30">{TITLE}</text>',
        *(part for row, figure in enumerate(figures) for part in _bar(TOP + ROW * row, figure)),
        f'<line class="limit" x1="{limit}" x2="{limit}" y1="{TOP - 8}" y2="{end}"/>',
        f'<text class="soft" x="{limit}" y="{height - 18}" text-anchor="middle">target</text>',
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _bar(y: float, figure: Figure) -> Iterator[str]:
    load = 0.0 if figure.load is None else min(figure.load, LONGEST)
    colour = {"met": MET, "MISSED": MISSED}.get(figure.verdict, SKIPPED)
    value = figure.show(figure.measured) if figure.load is not None else "skipped"
    yield f'<text x="{LEFT}" y="{y + 8}">{escape(figure.name)}</text>'
    yield f'<rect class="track" x="{LEFT}" y="{y + 16}" width="{UNIT}" height="10" rx="4"/>'
    if load:
        yield (
            f'<rect x="{LEFT}" y="{y + 16}" width="{max(load * UNIT, 3):.1f}" height="10" rx="4" '
            f'fill="{colour}"/>'
        )
    yield f'<text class="value" x="{LEFT + UNIT * LONGEST + 16}" y="{y + 8}">{escape(value)}</text>'
    yield (
        f'<text class="soft" x="{LEFT + UNIT * LONGEST + 16}" y="{y + 26}">'
        f"target {escape(figure.wanted)}{_mark(figure)}</text>"
    )


def _mark(figure: Figure) -> str:
    return ", missed" if figure.verdict == "MISSED" else ""
