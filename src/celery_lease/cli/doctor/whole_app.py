"""Whether undecorated tasks would be better off with leases, and which ones cannot have them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_lease.cli.rows import span
from celery_lease.core.findings import Finding, notice, warning
from celery_lease.core.words import counted, page
from celery_lease.task.task import LeasedTask
from celery_lease.worker.covered import obstacle

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_lease.cli.doctor.case import Case

PAGE = page("whole-app")
#: Most names in one line.
MANY = 5


def check(case: Case) -> Iterator[Finding]:
    """Yield late-acknowledged tasks without a lease, and what ``lease_tasks`` asks for in vain."""
    if case.loaded is None or not case.loaded.enabled:
        return
    late = [name for name, task in case.plain_tasks.items() if task.acks_late]
    if late:
        yield notice(
            "tasks.plain",
            f"{counted(len(late), 'late-ack task')} without a lease{_longest(case, late)}: "
            f"{_names(late)}",
            "If such a task takes longer than the broker's timeout, it is started again while it "
            "runs. The task of a killed worker starts again only after that timeout.",
            f'Decorate them, or set lease_tasks = "all": {PAGE}.',
        )
    for name, why in _uncovered(case).items():
        yield warning(
            "tasks.uncovered",
            f"no lease by lease_tasks for task {name}: {why}",
            "It runs as with plain Celery.",
            f'Exclude it by a pattern, as in ["*", "!{name}"], or change it.',
        )


def _uncovered(case: Case) -> dict[str, str]:
    wanted = case.loaded.tasks if case.loaded else None
    return {
        name: why
        for name, task in sorted(dict(case.app.tasks).items())
        if wanted and wanted.selects(name) and not isinstance(task, LeasedTask)
        if (why := obstacle(task))
    }


def _longest(case: Case, names: list[str]) -> str:
    """Say how long the one that runs longest by now has run."""
    seen = [
        (seconds, name)
        for worker in case.workers
        for name, seconds in worker.running.items()
        if name in names
    ]
    if not seen:
        return ""
    seconds, name = max(seen)
    return f", longest seen {span(seconds)} ({name}, which runs)"


def _names(names: list[str]) -> str:
    more = len(names) - MANY
    return ", ".join(names[:MANY]) + (f" and {more} more" if more > 0 else "")
