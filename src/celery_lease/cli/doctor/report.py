"""The report of the doctor: for a terminal, as plain text, and as JSON."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import click

from celery_lease.core.findings import Finding, Severity

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rich.console import RenderableType

STYLES = {
    Severity.OK: "green",
    Severity.NOTICE: "cyan",
    Severity.WARNING: "yellow",
    Severity.ERROR: "bold red",
}
WIDTH = len(max(Severity, key=len))


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The findings of all checks."""

    app: str
    broker: str  #: its URL without the password
    findings: Sequence[Finding]

    @property
    def counts(self) -> dict[Severity, int]:
        """The number of findings of each severity, the worst first."""
        found = Counter(each.severity for each in self.findings)
        return {each: found[each] for each in reversed(Severity) if found[each]}

    def exit_code(self, *, strict: bool) -> int:
        """Return 1 if there is an error, or with *strict* a warning; else 0."""
        worst = max((each.severity.rank for each in self.findings), default=0)
        return int(worst >= (Severity.WARNING if strict else Severity.ERROR).rank)

    @property
    def title(self) -> str:
        return f"celery-lease doctor: app {self.app}, broker {self.broker}"

    @property
    def summary(self) -> str:
        return ", ".join(map(" ".join, _counted(self)))


def show(report: Report, *, as_json: bool, colours: bool) -> None:
    """Print a report."""
    if as_json:
        click.echo(json.dumps(facts(report), indent=2, ensure_ascii=False))
    elif colours and find_spec("rich"):
        from rich.console import Console  # noqa: PLC0415  (an extra)

        Console().print(rendered(report))
    else:
        click.echo("\n".join(lines(report)))


def facts(report: Report) -> dict[str, Any]:
    """Return a report as a JSON document."""
    return {
        "app": report.app,
        "broker": report.broker,
        "counts": {each.value: report.counts.get(each, 0) for each in Severity},
        "findings": [asdict(each) for each in report.findings],
    }


def lines(report: Report) -> Iterator[str]:
    """Yield a report as plain lines, in the order of the checks."""
    yield report.title
    for subject, findings in by_subject(report.findings):
        yield ""
        yield subject
        for each in findings:
            yield f"  {each.severity:<{WIDTH}}  {each.what}"
            for label, text in (("why", each.why), ("do", each.remedy)):
                if text:
                    yield f"  {'':<{WIDTH}}  {label}: {text}"
    yield ""
    yield report.summary


def by_subject(findings: Iterable[Finding]) -> Iterable[tuple[str, list[Finding]]]:
    """Group findings by the first part of their check's name, in the order of the first of each."""
    groups: dict[str, list[Finding]] = {}
    for each in findings:
        groups.setdefault(each.check.partition(".")[0], []).append(each)
    return groups.items()


def rendered(report: Report) -> RenderableType:
    """Return a report for a terminal."""
    from rich.console import Group  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(ratio=1)
    for subject, findings in by_subject(report.findings):
        for number, each in enumerate(findings):
            style = STYLES[each.severity]
            table.add_row(
                Text("" if number else subject, "bold"),
                Text(each.severity, style),
                Text.assemble(*_paragraphs(each)),
            )
        table.add_row()
    return Group(Text(report.title, "bold"), Text(), table, _summary(report))


def _paragraphs(each: Finding) -> Iterator[tuple[str, str]]:
    yield each.what, "" if each.severity is Severity.OK else "bold"
    if each.why:
        yield f"\n{each.why}", "dim"
    if each.remedy:
        yield f"\n-> {each.remedy}", ""


def _summary(report: Report) -> RenderableType:
    from rich.text import Text  # noqa: PLC0415

    parts = zip(_counted(report), report.counts, strict=True)
    return Text(", ").join(Text(" ".join(words), STYLES[each]) for words, each in parts)


def _counted(report: Report) -> list[tuple[str, str]]:
    """Return the number and the name of each severity; "ok" has no plural."""
    return [
        (str(count), each if count == 1 or each is Severity.OK else f"{each}s")
        for each, count in report.counts.items()
    ]
