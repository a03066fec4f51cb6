"""What the demo shows while it runs: a live table, or plain lines where there is no terminal."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from example_project.jobdir import JobDir

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

STYLES: Final = {
    "waiting": "dim",
    "running": "cyan",
    "killed": "red",  # by the demo; the broker does not know yet
    "lost": "bold red",  # the lease ran out
    "done": "green",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One job as an onlooker sees it, from nothing but what the job's directory says."""

    job: str
    state: str = "waiting"
    worker: str = ""
    pid: int = 0
    token: int = 0
    deliveries: int = 0
    fraction: float = 0.0
    lease_left: float | None = None

    @classmethod
    def of(cls, directory: JobDir, dead_token: int, now: float) -> Self:
        """Look at a job; the holder with ``dead_token`` is known to have been killed."""
        found = directory.progress()
        if found is None:
            return cls(job=directory.path.name)
        finished = directory.manifest() is not None
        left = None if finished or found.lease_until is None else found.lease_until - now
        return cls(
            job=directory.path.name,
            state=_state(finished, left, killed=found.holder.token == dead_token),
            worker=found.holder.worker,
            pid=found.holder.pid,
            token=found.holder.token,
            deliveries=found.holder.deliveries,
            fraction=found.done / found.total,
            lease_left=None if left is None else max(0.0, left),
        )

    def lease(self) -> str:
        """Seconds until somebody else may run the job."""
        return "-" if self.lease_left is None else f"{self.lease_left:.1f} s"


def look(jobs: Path, dead: Mapping[str, int] | None = None) -> list[Row]:
    """Look at all jobs in a directory; ``dead`` maps jobs to the tokens of killed holders."""
    now, dead = time.time(), dead or {}
    paths = sorted(jobs.iterdir())
    return [Row.of(JobDir(path), dead.get(path.name, 0), now) for path in paths]


def short(worker: str) -> str:
    """Return a node name's first part, which is all that differs within one run."""
    return worker.partition("@")[0]


class Screen:
    """Shows rows and news, each in the way that the console can."""

    def __init__(self, console: Console, every: float = 2.0) -> None:
        """Without a terminal the rows are printed once in ``every`` seconds."""
        self.console = console
        self._every = every
        self._next = 0.0
        self._live: Live | None = None
        if console.is_terminal:
            self._live = Live(console=console, auto_refresh=False, transient=False)

    def __enter__(self) -> Self:
        """Begin to show."""
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *exc: object) -> None:
        """Leave the last picture where it is."""
        if self._live is not None:
            self._live.stop()

    def say(self, news: str) -> None:
        """Print one line that stays, above the table."""
        self.console.print(f"{time.strftime('%H:%M:%S')}  {news}", highlight=False)

    def hint(self, lines: Iterable[str]) -> None:
        """Print lines to be copied, exactly as they are."""
        for line in lines:
            self.console.print(f"  {line}", markup=False, highlight=False, soft_wrap=True)

    def show(self, rows: Sequence[Row], *, at_once: bool = False) -> None:
        """Show how all jobs are now; ``at_once`` even if plain lines are not due yet."""
        now = time.monotonic()
        if self._live is not None:
            self._live.update(_table(rows), refresh=True)
        elif at_once or now >= self._next:
            self._next = now + self._every
            self.say(" | ".join(map(_line, rows)))


def _state(finished: bool, lease_left: float | None, *, killed: bool) -> str:
    if finished:
        return "done"
    if lease_left is not None and lease_left < 0:
        return "lost"
    return "killed" if killed else "running"


def _line(row: Row) -> str:
    if row.state == "waiting":
        return f"{row.job} waiting"
    where = f"{short(row.worker)} token {row.token} delivery {row.deliveries}"
    return f"{row.job} {row.state} {row.fraction:4.0%} {where} lease {row.lease()}"


def _table(rows: Sequence[Row]) -> RenderableType:
    table = Table(expand=True, box=None, header_style="bold")
    for name, ratio in (("job", 2), ("state", 2), ("progress", 6), ("", 1), ("holder", 4)):
        table.add_column(name, ratio=ratio, no_wrap=True, min_width=4)
    for name in ("lease", "token", "delivery"):
        table.add_column(name, justify="right", no_wrap=True, min_width=8)
    for row in rows:
        table.add_row(*_cells(row))
    return Group(Text(), table)


def _cells(row: Row) -> tuple[RenderableType, ...]:
    style = STYLES[row.state]
    holder = f"{short(row.worker)} ({row.pid})" if row.pid else ""
    bar = ProgressBar(total=1.0, completed=row.fraction, complete_style=style)
    state, lease = Text(row.state, style=style), Text(row.lease(), style=style)
    counts = [str(count) if count else "" for count in (row.token, row.deliveries)]
    return (row.job, state, bar, f"{row.fraction:.0%}", holder, lease, *counts)
