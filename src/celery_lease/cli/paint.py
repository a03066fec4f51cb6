"""Tables for terminals, with rich; importing this fails where that is not installed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from celery_lease.cli import rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from celery_lease.cli.rows import Row

STATE, LEFT, PROGRESS = (rows.HEADERS.index(name) for name in ("STATE", "LEFT", "PROGRESS"))
RIGHT = {"HELD", "BEAT", "LEFT", "DELIVERY"}
BAR = 12  #: cells of a progress bar
#: Share of a lease below which the time left is something to look at.
SOON = 1 / 3


def table(found: Sequence[Row], cells: Sequence[Sequence[str]], *, bars: bool = False) -> Table:
    """Return leases as a table.

    Args:
        found: The leases.
        cells: Their cells.
        bars: Draw bars beside the progress of tasks that said of how much.
    """
    made = Table(box=None, pad_edge=False, header_style="bold", expand=bars)
    for name in rows.HEADERS:
        made.add_column(
            name,
            justify="right" if name in RIGHT else "left",
            no_wrap=True,
            overflow="ellipsis",
        )
    for row, texts in zip(found, cells, strict=True):
        made.add_row(*_painted(row, texts, bars=bars))
    return made


def print_table(found: Sequence[Row], cells: Sequence[Sequence[str]]) -> None:
    """Print leases to the terminal."""
    Console().print(table(found, cells))


def _painted(row: Row, texts: Sequence[str], *, bars: bool) -> list[RenderableType]:
    # Text, not str: what a task writes about itself must not be taken for markup.
    painted: list[RenderableType] = [Text(each) for each in texts]
    painted[STATE] = Text(texts[STATE], style=_state_style(row))
    if row["remaining"] < row.get("extension", 0) * SOON:
        painted[LEFT] = Text(texts[LEFT], style="yellow")
    part = rows.share(row)
    if bars and part is not None:
        line = Table.grid(padding=(0, 1))
        line.add_row(ProgressBar(total=1.0, completed=part, width=BAR), Text(texts[PROGRESS]))
        painted[PROGRESS] = line
    return painted


def _state_style(row: Row) -> str:
    if row["state"] in {"lost", "expired"}:
        return "red"
    if row.get("cancelled"):
        return "magenta"
    return "green" if row["state"] == "running" else "dim"
