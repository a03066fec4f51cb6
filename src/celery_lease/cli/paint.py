"""Tables for terminals, with rich; importing this fails where that is not installed."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from celery_lease.cli import rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.console import RenderableType

    from celery_lease.cli.rows import Row

RIGHT = {"HELD", "BEAT", "LEFT", "DELIVERY"}
BAR = 10  #: cells of a progress bar
#: Share of a lease below which the time left is something to look at.
SOON = 1 / 3


def table(found: Sequence[Row], cells: Sequence[Sequence[str]], width: int) -> Table:
    """Return leases as a table.

    Args:
        found: The leases.
        cells: Their cells.
        width: How wide it may be; columns that matter less are left out if need be.
    """
    bars = width >= rows.width(cells) + BAR + 1
    names = rows.fitting(cells, width)
    made = Table(box=None, pad_edge=False, header_style="bold")
    for name in names:
        made.add_column(
            name,
            justify="right" if name in RIGHT else "left",
            no_wrap=True,
            overflow="ellipsis",
        )
    for row, texts in zip(found, cells, strict=True):
        named = dict(zip(rows.HEADERS, texts, strict=True))
        made.add_row(*[_painted(row, name, named[name], bars=bars) for name in names])
    return made


def print_table(found: Sequence[Row], cells: Sequence[Sequence[str]]) -> None:
    """Print leases to the terminal."""
    console = Console()
    console.print(table(found, cells, console.width))


@contextmanager
def live() -> Iterator[Callable[[str, Sequence[Row], Sequence[Sequence[str]], int], None]]:
    """Yield what shows a headline, leases, their cells, and how many there are beyond them.

    On a screen of its own, which is gone in the end.
    """
    with Live(screen=True, auto_refresh=False) as shown:

        def show(
            headline: str, found: Sequence[Row], cells: Sequence[Sequence[str]], more: int
        ) -> None:
            first = Text(headline, style="bold", no_wrap=True, overflow="ellipsis")
            parts: list[RenderableType] = [first, table(found, cells, shown.console.width)]
            if more > 0:
                parts.append(Text(f"and {more} more", style="dim"))
            shown.update(Group(*parts), refresh=True)

        yield show


def _painted(row: Row, name: str, text: str, *, bars: bool) -> RenderableType:
    # Text, not str: what a task writes about itself must not be taken for markup.
    if name == "STATE":
        return Text(text, style=_state_style(row))
    if name == "LEFT" and row["remaining"] < row.get("extension", 0) * SOON:
        return Text(text, style="yellow")
    part = rows.share(row)
    if name == "PROGRESS" and bars and part is not None:
        line = Table.grid(padding=(0, 1))
        line.add_column(width=BAR)
        line.add_column(no_wrap=True)
        line.add_row(ProgressBar(total=1.0, completed=part, width=BAR), Text(text))
        return line
    return Text(text)


def _state_style(row: Row) -> str:
    if row["state"] in {"lost", "expired"}:
        return "red"
    if row.get("cancelled"):
        return "magenta"
    return "green" if row["state"] == "running" else "dim"
