"""Paints leases for terminals, with rich; importing this module fails without rich."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from celery_lease.cli import rows
from celery_lease.view.row import SOON

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from celery_lease.view import LeaseRow

RIGHT = {"HELD", "BEAT", "LEFT", "DELIVERY"}
BAR = 10  #: cells of a progress bar
#: Colours of states, by :attr:`LeaseRow.kind`.
STYLES = {"bad": "red", "odd": "magenta", "good": "green", "calm": "dim"}


def columns(wide: Mapping[str, int], most: int) -> tuple[list[tuple[str, int]], bool]:
    """Return the names and widths of the columns that fit, and whether there is room for bars.

    Args:
        wide: The widths of all columns without bars.
        most: The most characters of a line; less important columns are left out if necessary.
    """
    names = rows.fitting(wide, most)
    bars = most >= rows.total(wide) + BAR + 1
    wide = {**wide, "PROGRESS": wide["PROGRESS"] + (BAR + 1) * bars}
    return [(name, wide[name]) for name in names], bars


def print_table(found: Sequence[LeaseRow], cells: Sequence[Sequence[str]]) -> None:
    """Print leases to the terminal."""
    console = Console()
    made = Table(box=None, pad_edge=False, header_style="bold")
    wide, bars = columns(rows.widths(cells), console.width)
    names = [name for name, _ in wide]
    for name in names:
        made.add_column(aligned(name), no_wrap=True, overflow="ellipsis")
    for row, texts in zip(found, cells, strict=True):
        made.add_row(*painted(row, texts, names, bars=bars))
    console.print(made)


def aligned(name: str, text: str | None = None) -> Text:
    """Return a text for the column *name*, its name by default, left or right in it."""
    return Text(name if text is None else text, justify="right" if name in RIGHT else "left")


def painted(
    row: LeaseRow, texts: Sequence[str], names: Sequence[str], *, bars: bool
) -> Sequence[Text]:
    """Return the cells of a lease in the columns *names*, with colours and a bar of its progress.

    A :class:`Text` each, not a string: a task's own texts must not be taken for markup.
    """
    named = dict(zip(rows.HEADERS, texts, strict=True))
    return [_cell(row, name, named[name], bars=bars) for name in names]


def _cell(row: LeaseRow, name: str, text: str, *, bars: bool) -> Text:
    style = ""
    if name == "STATE":
        style = STYLES[row.kind]
    elif name == "LEFT" and row.remaining < row.extension * SOON:
        style = "yellow"
    made = aligned(name, "")
    if name == "PROGRESS" and bars and row.progress.share is not None:
        done = round(BAR * row.progress.share)
        made.append("\u2501" * done, "green" if done == BAR else "magenta")
        made.append("\u2501" * (BAR - done), "bright_black").append(" ")
    return made.append(text, style)
