"""Tables for terminals, with rich; importing this module fails without rich."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from celery_lease.cli import rows
from celery_lease.view.row import ORPHANED, SILENT, LeaseRow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from rich.console import RenderableType

RIGHT = {"HELD", "BEAT", "LEFT", "DELIVERY"}
BAR = 10  #: cells of a progress bar
#: Share of a lease below which the remaining time is highlighted.
SOON = 1 / 3


def table(
    found: Sequence[LeaseRow],
    cells: Sequence[Sequence[str]],
    width: int,
    least: Mapping[str, int] = rows.NOTHING,
) -> Table:
    """Return leases as a table.

    Args:
        found: The leases.
        cells: Their cells.
        width: The most characters of a line; less important columns are left out if necessary.
        least: The least widths of columns.
    """
    bars = width >= rows.width(cells, least=least) + BAR + 1
    names = rows.fitting(cells, width, least)
    room = BAR + 1 if least and bars else 0
    made = Table(box=None, pad_edge=False, header_style="bold")
    for name in names:
        made.add_column(
            name,
            justify="right" if name in RIGHT else "left",
            no_wrap=True,
            overflow="ellipsis",
            min_width=least.get(name, 0) + (room if name == "PROGRESS" else 0),
        )
    for row, texts in zip(found, cells, strict=True):
        named = dict(zip(rows.HEADERS, texts, strict=True))
        made.add_row(*[_painted(row, name, named[name], bars=bars) for name in names])
    return made


def print_table(found: Sequence[LeaseRow], cells: Sequence[Sequence[str]]) -> None:
    """Print leases to the terminal."""
    console = Console()
    console.print(table(found, cells, console.width))


@contextmanager
def live() -> Iterator[Callable[[str, Sequence[LeaseRow], Sequence[Sequence[str]], int], None]]:
    """Yield a function that shows a headline, leases, their cells, and the number of further ones.

    It uses a screen of its own, which is closed at the end.
    """
    steady = rows.Steady(rows.USUAL)
    with Live(screen=True, auto_refresh=False) as shown:

        def show(
            headline: str, found: Sequence[LeaseRow], cells: Sequence[Sequence[str]], more: int
        ) -> None:
            first = Text(headline, style="bold", no_wrap=True, overflow="ellipsis")
            drawn = table(found, cells, shown.console.width, steady.grow(cells))
            parts: list[RenderableType] = [first, drawn]
            if more > 0:
                parts.append(Text(f"and {more} more", style="dim"))
            shown.update(Group(*parts), refresh=True)

        yield show


def _painted(row: LeaseRow, name: str, text: str, *, bars: bool) -> RenderableType:
    # Text, not str: a task's own texts must not be taken for markup.
    if name == "STATE":
        return Text(text, style=_state_style(row))
    if name == "LEFT" and row.remaining < row.extension * SOON:
        return Text(text, style="yellow")
    part = row.progress.share
    if name == "PROGRESS" and bars and part is not None:
        line = Table.grid(padding=(0, 1))
        line.add_column(width=BAR)
        line.add_column(no_wrap=True)
        line.add_row(ProgressBar(total=1.0, completed=part, width=BAR), Text(text))
        return line
    return Text(text)


def _state_style(row: LeaseRow) -> str:
    if row.state in {"lost", ORPHANED, SILENT}:
        return "red"
    if row.cancelled:
        return "magenta"
    return "green" if row.state == "running" else "dim"
