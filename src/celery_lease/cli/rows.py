"""Leases as rows of text, for tables of any kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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

#: What a narrow screen goes without, the first first; what is in no list is always shown.
LEAST = ("NOTE", "DELIVERY", "HELD", "WORKER", "STATE", "PROGRESS")

MINUTE, HOUR, DAY = 60, 3600, 86400
NONE = "-"

Row = dict[str, Any]


def _number(row: Row, name: str) -> float:
    return float(row.get(name) or 0.0)


def share(row: Row) -> float | None:
    """Return how much of a task is done, from 0 to 1; None: it did not say."""
    progress: Mapping[str, Any] = row.get("progress") or {}
    done, total = progress.get("done"), progress.get("total")
    if done is None or not total or total < 0:
        return None
    return float(min(1.0, max(0.0, done / total)))


#: What rows can be sorted by, and how.
SORTS: dict[str, Callable[[Row], Any]] = {
    "worker": lambda row: (row["hostname"], _number(row, "held_since")),
    "task": lambda row: (row["task"], _number(row, "held_since")),
    "held": lambda row: _number(row, "held_since"),
    "beat": lambda row: -_number(row, "beat_age"),
    "left": lambda row: _number(row, "remaining"),
    "progress": lambda row: -(share(row) or 0.0),
    "deliveries": lambda row: -_number(row, "deliveries"),
}


def listed(replies: Mapping[str, Any]) -> list[Row]:
    """Return the rows of all workers' replies, each with its worker's name."""
    return [
        {"hostname": name, **row}
        for name, rows in replies.items()
        if isinstance(rows, list)
        for row in rows
    ]


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


def amount(row: Row) -> str:
    """Return a task's progress: 3/8 (37%), 3, or nothing."""
    progress: Mapping[str, Any] = row.get("progress") or {}
    done, total = progress.get("done"), progress.get("total")
    if done is None:
        return NONE
    part = share(row)
    return f"{done:g}" if part is None else f"{done:g}/{total:g} ({part:.0%})"


def state(row: Row) -> str:
    """Return a lease's state in a word or two."""
    if row["state"] == "lost":
        return f"lost: {row.get('lost')}"
    return "cancelled" if row.get("cancelled") else str(row["state"])


def cells(row: Row, now: float) -> tuple[str, ...]:
    """Return one lease's cells, in the order of :data:`HEADERS`; *now* is seconds since 1970."""
    texts = (
        row["task"],
        row["id"],
        row["hostname"],
        state(row),
        span(max(0.0, now - row["held_since"])),
        span(row.get("beat_age")),
        span(row["remaining"]),
        amount(row),
        (row.get("progress") or {}).get("note") or "",
        f"{row['deliveries']}" + (f", {row['losses']} lost" if row["losses"] else ""),
    )
    return tuple(map(_clean, texts))


def widths(table: Sequence[Sequence[str]]) -> list[int]:
    """Return how wide the columns of some rows are, names included."""
    return [max(map(len, column)) for column in zip(HEADERS, *table, strict=True)]


def width(table: Sequence[Sequence[str]], names: Sequence[str] = HEADERS) -> int:
    """Return how wide some columns are in all."""
    wide = dict(zip(HEADERS, widths(table), strict=True))
    return sum(wide[name] for name in names) + 2 * (len(names) - 1)


def fitting(table: Sequence[Sequence[str]], most: int) -> list[str]:
    """Return the names of the columns that fit a screen of *most* characters."""
    names = list(HEADERS)
    for name in LEAST:
        if width(table, names) <= most:
            break
        names.remove(name)
    return names


def text(rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield a table of plain text, one line a row, with its headers."""
    table = list(rows)
    wide = widths(table)
    for row in [HEADERS, *table]:
        yield "  ".join(cell.ljust(most) for cell, most in zip(row, wide, strict=True)).rstrip()


def _clean(text: str) -> str:
    """Return a text without what would move a terminal's cursor or colour it."""
    return "".join(letter if letter.isprintable() else " " for letter in text)
