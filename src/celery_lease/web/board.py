"""The board: filters and sorts leases and parked messages, and keeps both in its links."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from celery_lease.cli import rows
from celery_lease.web.rates import seconds_left

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from celery_lease.view import LeaseRow
    from celery_lease.web.watch import Look, PageWatch

#: Rows on one page, and the most values that a filter offers.
PAGE, OFFERED = 50, 200
#: The value of the filter for states that selects such leases.
EXPIRES_SOON = "expires soon"
#: The sort order for each column.
SORTED_BY = {
    "TASK": "task",
    "WORKER": "worker",
    "HELD": "held",
    "BEAT": "beat",
    "LEFT": "left",
    "PROGRESS": "progress",
    "DELIVERY": "deliveries",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A reader's filters, sort order and page."""

    task: str = ""
    worker: str = ""
    queue: str = ""
    state: str = ""
    q: str = ""  #: free text
    sort: str = "held"
    page: int = 1

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Query:
        """Return the query in a URL; wrong values are ignored."""
        names = {each.name for each in fields(cls)} - {"page", "sort"}
        known: dict[str, Any] = {name: given[name].strip() for name in names if name in given}
        if given.get("sort") in rows.SORTS:
            known["sort"] = given["sort"]
        page = given.get("page", "")
        known["page"] = max(1, int(page)) if page.isdecimal() and len(page) < 8 else 1  # noqa: PLR2004
        return cls(**known)

    @property
    def filters(self) -> bool:
        return any((self.task, self.worker, self.queue, self.state, self.q))

    def link(self, **changes: Any) -> str:
        """Return the query of a URL, with changes."""
        if changes.keys() - {"page"}:
            changes.setdefault("page", 1)
        wanted = asdict(replace(self, **changes))
        default = asdict(Query())
        return "?" + urlencode({k: v for k, v in wanted.items() if v != default[k]})

    def takes(self, row: LeaseRow) -> bool:
        """Whether the filters admit a lease."""
        return (
            (not self.task or row.task == self.task)
            and (not self.worker or self.worker in (row.shown_as, row.worker, row.hostname))
            and (not self.queue or row.queue == self.queue)
            and (self.state in ("", state_of(row)) or (self.state == EXPIRES_SOON and row.is_soon))
            and row.has_text(self.q)
        )


def state_of(row: LeaseRow) -> str:
    """Return a state without its reason, for a filter."""
    return rows.state(row).partition(":")[0]


def chosen(look: Look, query: Query) -> Sequence[LeaseRow]:
    """Return all rows for a query, in order; computed once for all viewers."""
    return look.once(
        ("rows", replace(query, page=1)),
        lambda: rows.in_order(filter(query.takes, look.view.all_rows), query.sort),
    )


def choices(look: Look) -> Mapping[str, Mapping[str, int]]:
    """Return the values of each filter, with the number of their rows."""

    def count() -> dict[str, dict[str, int]]:
        every = look.view.all_rows
        counted = {
            "state": Counter(map(state_of, every)),
            "task": Counter(row.task for row in every),
            "queue": Counter(row.queue for row in every),
            "worker": Counter(row.shown_as for row in every if row.shown_as),
        }
        counted["state"][EXPIRES_SOON] = sum(row.is_soon for row in every)
        return {
            name: dict(sorted((k, v) for k, v in each.most_common(OFFERED) if v))
            for name, each in counted.items()
        }

    return look.once("choices", count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """One lease on the page."""

    row: LeaseRow  #: as of now
    cells: Mapping[str, str]  #: the texts of ``top``, by column
    rate: float | None  #: the rate of its progress, per second
    left: float | None  #: seconds until it is done, at that rate

    @property
    def share(self) -> float | None:
        """The remaining share of the lease, from 0 to 1; None: its length is unknown."""
        length = self.row.extension
        return min(1.0, max(0.0, self.row.remaining / length)) if length else None


def shown(watch: PageWatch, look: Look, found: Sequence[LeaseRow]) -> list[Shown]:
    """Return leases with their texts for the page."""
    wall = watch.clock.wall().timestamp()
    return [_shown(watch.row_now(row, look), look.rates.get(row.tag), wall) for row in found]


def _shown(row: LeaseRow, rate: float | None, wall: float) -> Shown:
    cells = dict(zip(rows.HEADERS, rows.cells(row, wall), strict=True))
    return Shown(row=row, cells=cells, rate=rate or None, left=seconds_left(row, rate))
