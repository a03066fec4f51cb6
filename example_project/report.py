"""The last page of the demo: what became of each job, how long the takeover took, the verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from example_project.show import short

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from example_project.rolling import End
    from example_project.verdict import Check, Evidence, Outcome


def print_rolling(console: Console, end: End) -> None:
    """Print what became of the jobs while the workers were restarted."""
    console.print()
    for one in end.restarts:
        console.print(
            f"{short(one.worker)} left {one.seconds:.1f} s after SIGTERM, exit code {one.code}",
            highlight=False,
        )
    for job in end.jobs:
        runs = [f"{short(line.holder.worker)} from {line.note}" for line in job.lines("start")]
        console.print(f"{job.job} {job.state}: {' then '.join(runs)}", highlight=False)
    _print_checks(console, end.checks, end.seconds)


def print_summary(console: Console, outcome: Outcome) -> None:
    """Print all that is worth knowing at the end."""
    console.print()
    console.print(_jobs(outcome))
    _print_takeovers(console, outcome)
    _print_checks(console, outcome.checks, outcome.seconds)


def _print_checks(console: Console, checks: Sequence[Check], seconds: float) -> None:
    for check in checks:
        mark = "[bold red]FAIL[/]" if check.faults else "[green]ok  [/]"
        console.print(f"{mark} {check.promise}", highlight=False)
        for fault in check.faults:
            console.print(f"       {fault}", style="red", markup=False, soft_wrap=True)
    bad = any(check.faults for check in checks)
    verdict = "[bold red]not all was true[/]" if bad else "[green]all of it was true[/]"
    console.print(f"{verdict}, after {seconds:.1f} s", highlight=False)


def _jobs(outcome: Outcome) -> Table:
    table = Table(header_style="bold")
    for name in ("job", "state", "starts", "finishes", "finished by", "token", "SHA-256", ""):
        table.add_column(name, no_wrap=True)
    for job in outcome.jobs:
        table.add_row(*_cells(job, outcome.expected))
    return table


def _cells(job: Evidence, expected: str) -> tuple[str, ...]:
    manifest = job.manifest or {}
    checksum = str(manifest.get("sha256", ""))
    right = checksum == expected == job.archive_sha256
    return (
        job.job,
        job.state,
        " then ".join(short(line.holder.worker) for line in job.lines("start")),
        str(len(job.lines("finish"))),
        short(str(manifest.get("worker", ""))),
        str(manifest.get("token", "")),
        checksum[:16],
        "[green]right[/]" if right else "[bold red]wrong[/]",
    )


def _print_takeovers(console: Console, outcome: Outcome) -> None:
    free = outcome.kill.free if outcome.kill else 0
    for number, takeover in enumerate(outcome.takeovers):
        promise = (
            f"promised: {outcome.promised:g} s"
            if number < free
            else "after waiting for a free process, too"
        )
        console.print(
            f"{takeover.job}: started again on {short(takeover.worker)} {takeover.seconds:.1f} s "
            f"after the kill ({promise}), token {takeover.old_token} -> {takeover.new_token}",
            highlight=False,
        )
