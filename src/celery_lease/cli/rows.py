"""Formats leases as rows of text, for all tables."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from celery_lease.cli.ids import WHOLE, unique_length
from celery_lease.view.row import PARKED, RESTING, LeaseRow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

HEADERS = (
    "TASK",
    "ID",
    "WORKER",
    "STATE",
    "HELD",
    "BEAT",
    "LEFT",
    "PROGRESS",
    "NOTE",
    "DELIVERY",
)

#: Columns that a narrow screen leaves out, in this order; all others are always shown.
LEAST = ("NOTE", "DELIVERY", "HELD", "WORKER", "STATE", "PROGRESS")

NOTHING: Mapping[str, int] = MappingProxyType({})
#: The first widths of columns in a table that is drawn again and again.
USUAL: Mapping[str, int] = {
    "STATE": 8,
    "HELD": 6,
    "BEAT": 6,
    "LEFT": 6,
    "PROGRESS": 12,
    "DELIVERY": 9,
}

MINUTE, HOUR, DAY = 60, 3600, 86400
NONE = "-"

#: The sort orders of rows.
SORTS: dict[str, Callable[[LeaseRow], Any]] = {
    "worker": lambda row: (row.shown_as, row.held_since),
    "task": lambda row: (row.task, row.held_since),
    "held": lambda row: row.held_since,
    "beat": lambda row: -(row.beat_age or 0.0),
    "left": lambda row: row.remaining,
    "progress": lambda row: -(row.progress.share or 0.0),
    "deliveries": lambda row: -row.deliveries,
}


def in_order(found: Iterable[LeaseRow], sort: str) -> list[LeaseRow]:
    """Return rows by one of :data:`SORTS`; parked messages come after all leases."""
    order = SORTS[sort]
    return sorted(found, key=lambda row: (row.state == PARKED, order(row)))


def span(seconds: float | None) -> str:
    """Return a duration in at most six characters: 3.2s, 45s, 4m10s, 2h03m, 5d02h."""
    if seconds is None:
        return NONE
    whole = int(seconds)
    if seconds < 10:  # noqa: PLR2004
        return f"{max(seconds, 0.0):.1f}s"
    if whole < 2 * MINUTE:
        return f"{whole}s"
    if whole < HOUR:
        return f"{whole // MINUTE}m{whole % MINUTE:02}s"
    if whole < 2 * DAY:
        return f"{whole // HOUR}h{whole % HOUR // MINUTE:02}m"
    return f"{whole // DAY}d{whole % DAY // HOUR:02}h"


def amount(row: LeaseRow) -> str:
    """Return a task's progress: 3/8 (37%), 3, or "-"."""
    done, total, part = row.progress.done, row.progress.total, row.progress.share
    if done is None:
        return NONE
    return f"{done:g}" if part is None else f"{done:g}/{total:g} ({part:.0%})"


def state(row: LeaseRow) -> str:
    """Return a lease's state in a few words."""
    if row.state == "lost":
        return f"lost: {row.lost}"
    if row.storing:
        return "storing result"
    return "cancelled" if row.cancelled else row.state


def note(row: LeaseRow) -> str:
    """Return the next step of a lease whose holder does not reply, or its task's note.

    Of a parked message: what it waits for.
    """
    if row.position is not None:
        return f"position {row.position} for key {row.key}"
    if row.runs_again_in is not None:
        verb = "goes back" if row.state == RESTING else "runs again"
        return f"{verb} in about {span(row.runs_again_in)}"
    if row.heard_age is not None:
        return f"no reply; said {span(row.heard_age)} ago: {row.progress.note}".rstrip(": ")
    return row.progress.note


def printable(text: str) -> str:
    """Replace characters that would move a terminal's cursor or change its colours."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def cells(row: LeaseRow, now: float) -> tuple[str, ...]:
    """Return the cells of a lease, in the order of :data:`HEADERS`; *now* is seconds since 1970."""
    texts = (
        row.task,
        row.id,
        row.shown_as or NONE,
        state(row),
        span(max(0.0, now - row.held_since)),
        span(row.beat_age),
        NONE if row.state == PARKED else span(row.remaining),
        amount(row),
        note(row),
        f"{row.deliveries or NONE}" + (f", {row.losses} lost" if row.losses else ""),
    )
    return tuple(map(printable, texts))


def widths(table: Iterable[Sequence[str]], least: Mapping[str, int] = NOTHING) -> dict[str, int]:
    """Return the widths of the columns, headers included, and not below *least*."""
    columns = zip(HEADERS, *table, strict=True)
    return {each[0]: max(least.get(each[0], 0), *map(len, each)) for each in columns}


def total(wide: Mapping[str, int], names: Iterable[str] = HEADERS) -> int:
    """Return the width of the columns *names* together, by the width of each."""
    return sum(wide[name] + 2 for name in names) - 2


def fitting(wide: Mapping[str, int], most: int) -> list[str]:
    """Return the names of the columns that fit a screen of *most* characters."""
    names = list(HEADERS)
    for name in LEAST:
        if total(wide, names) <= most:
            break
        names.remove(name)
    return names


def shortened(
    table: Sequence[Sequence[str]], most: int, ids: Iterable[str] = ()
) -> Sequence[Sequence[str]]:
    """Return rows with ids shortened to a distinct length, if they are too wide otherwise.

    Args:
        table: The rows.
        most: The width of the screen in characters.
        ids: The ids of all leases, if some have no row.
    """
    if total(widths(table)) <= most:
        return table
    column = HEADERS.index("ID")
    length = unique_length({*ids, *(row[column] for row in table)})

    def cut(text: str) -> str:
        return text[:length] if len(text) >= WHOLE else text

    return [(*row[:column], cut(row[column]), *row[column + 1 :]) for row in table]


def text(
    table: Sequence[Sequence[str]], most: int | None = None, wide: Mapping[str, int] | None = None
) -> Iterator[str]:
    """Yield a table of plain text, one line a row, with its headers.

    Args:
        table: Its rows.
        most: The width of the screen in characters, for which columns are left out; None: a file.
        wide: The widths of its columns; None: those that it needs.
    """
    wide = wide or widths(table)
    names = HEADERS if most is None else fitting(wide, most)
    for row in [HEADERS, *table]:
        cells = dict(zip(HEADERS, row, strict=True))
        yield "  ".join(cells[name].ljust(wide[name]) for name in names).rstrip()[:most]
