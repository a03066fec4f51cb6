"""One measured figure and its target, and how a list of them is kept and shown."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

PACKAGES = ("celery-lease", "celery", "kombu", "redis")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A measurement. ``measured`` is None where it could not be made; ``note`` says why."""

    name: str
    unit: str
    target: float
    measured: float | None
    at_least: bool = False  #: the target is a floor; else it is a ceiling
    digits: int = 0
    note: str = ""
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def load(self) -> float | None:
        """How much of what is allowed was used: 1.0 meets the target exactly, less is better."""
        if self.measured is None:
            return None
        return self.target / self.measured if self.at_least else self.measured / self.target

    @property
    def verdict(self) -> str:
        """Return one word for the table."""
        if self.load is None:
            return "skipped"
        return "met" if self.load <= 1 else "MISSED"

    @property
    def wanted(self) -> str:
        """Return the target for people."""
        return f"{'>=' if self.at_least else '<='} {self.show(self.target)}"

    def show(self, value: float | None) -> str:
        """Return a value of this figure for people."""
        return "-" if value is None else f"{value:,.{self.digits}f} {self.unit}".strip()


def table(figures: Sequence[Figure]) -> str:
    """Return the figures as lines of text."""
    head = ("what", "target", "measured", "verdict")
    rows = [head, *((f.name, f.wanted, f.show(f.measured), f.verdict) for f in figures)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    lines.insert(1, "  ".join("-" * width for width in widths))
    notes = [f"{figure.name}: {figure.note}" for figure in figures if figure.note]
    return "\n".join([*lines, *notes])


def markdown(figures: Sequence[Figure]) -> str:
    """Return the figures as a table in Markdown."""
    rows = [(each.name, each.wanted, each.show(each.measured), each.verdict) for each in figures]
    lines = ["| measured | target | now | |", "| --- | ---: | ---: | --- |"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join(lines) + "\n"


def as_json(figures: Sequence[Figure], server: str) -> str:
    """Return the figures and where they were measured."""
    environment = {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpus": os.cpu_count(),
        "server": server,
        **{name: version(name) for name in PACKAGES},
    }
    kept = [{**asdict(each), "load": each.load, "verdict": each.verdict} for each in figures]
    return json.dumps({"environment": environment, "figures": kept}, indent=2) + "\n"
