"""What became of the messages, by the tasks' ledger and by the store of their effects."""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterator, Mapping, Sequence

    from chaos.store import Effects
    from harness.ledger import Entry

#: Seconds by which two readings of the host's wall clock, in two processes, may disagree.
TOLERANCE = 0.001
NOTHING: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Run:
    """One run of one task; times by the wall clock.

    A fencing token is the broker's clock in microseconds when the lease began, or a little more.
    """

    token: int
    started_at: float
    held_at: float  #: the last moment at which it saw its lease as held
    ended: bool

    @property
    def leased_at(self) -> float:
        return self.token / 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """Counts over all tasks."""

    completed: int
    runs: int
    redelivered: int  #: runs beyond the first of their task
    twice: int  #: tasks whose last effect was accepted more than once
    lost: list[str]  #: task ids: sent, never completed
    overlaps: list[tuple[str, Run, Run]]  #: leases that were held at once
    shared: list[tuple[str, Run, Run]]  #: keys that two tasks held at once
    refused: int  #: writes of former holders that the store turned away
    told: int  #: runs that learned of their loss by LeaseLost
    recoveries: list[float]  #: seconds from the last beat of an unfinished run to the next run


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The end of one staging."""

    seed: int
    seconds: float
    sent: int
    findings: Findings
    staged: Counter[str]
    left: dict[str, int]  #: entries that the broker still keeps, by key
    died: int
    stuck: int

    def is_good(self) -> bool:
        """Whether nothing was lost, no lease was held twice, and nothing is left behind."""
        found = self.findings
        return not (found.lost or found.overlaps or found.shared or self.left)

    def table(self) -> str:
        """Return the counts for people, as Markdown tables."""
        found = self.findings
        rows = [
            ("messages sent", self.sent),
            ("completed", found.completed),
            ("**lost**", len(found.lost)),
            ("**leases of one message held at once**", len(found.overlaps)),
            ("**exclusive keys held twice at once**", len(found.shared)),
            ("runs", found.runs),
            ("redelivered", found.redelivered),
            ("runs told of their loss by `LeaseLost`", found.told),
            ("stale writes refused by the store", found.refused),
            ("last effect written twice: cut off before the acknowledgement", found.twice),
            ("entries left at the broker", sum(self.left.values())),
            ("workers that died of themselves", self.died),
            ("workers that did not stop when told", self.stuck),
        ]
        faults = sorted(self.staged.items(), key=lambda item: -item[1])
        faults.append(("all", self.staged.total()))
        return f"{_table('ledger', rows)}\n\n{_table('faults', faults)}"


def _table(title: str, rows: Sequence[tuple[str, int]]) -> str:
    lines = [f"| {title} | |", "| --- | ---: |", *(f"| {name} | {n:,} |" for name, n in rows)]
    return "\n".join(lines)


def judge(
    effects: Mapping[str, Effects], entries: Sequence[Entry], keys: Mapping[str, str] = NOTHING
) -> Findings:
    """Hold ledger and store against what was sent, the keys of *effects*.

    *keys* has the exclusive key of each task.
    """
    runs = _runs(effects, entries)
    by_key: dict[str, list[Run]] = defaultdict(list)
    for task_id, its in runs.items():
        if key := keys.get(task_id):
            by_key[key] += its
    count = sum(map(len, runs.values()))
    return Findings(
        completed=sum(each.done > 0 for each in effects.values()),
        runs=count,
        redelivered=count - len(runs),
        twice=sum(each.done > 1 for each in effects.values()),
        lost=[task_id for task_id, each in effects.items() if not each.done],
        overlaps=[(task_id, *pair) for task_id, its in runs.items() for pair in overlapping(its)],
        shared=[(key, *pair) for key, its in by_key.items() for pair in sharing(its)],
        refused=sum(each.refused for each in effects.values()),
        told=sum(each.event == "lost" for each in entries),
        recoveries=[
            later.started_at - run.held_at
            for its in runs.values()
            for run, later in itertools.pairwise(its)
            if not run.ended
        ],
    )


def overlapping(runs: Sequence[Run]) -> Iterator[tuple[Run, Run]]:
    """Yield pairs of which the one saw its lease as held when the other's had begun."""
    for run, later in itertools.combinations(runs, 2):
        if run.held_at > later.leased_at + TOLERANCE:
            yield run, later


def sharing(runs: Sequence[Run]) -> Iterator[tuple[Run, Run]]:
    """Yield pairs of which the one saw its lease as held when the other had started."""
    ordered = sorted(runs, key=lambda run: run.started_at)
    for run, later in itertools.combinations(ordered, 2):
        if run.held_at > later.started_at + TOLERANCE:
            yield run, later


def _runs(effects: Mapping[str, Effects], entries: Sequence[Entry]) -> dict[str, list[Run]]:
    """Return the runs of each task, in the order of their tokens."""
    ended = {each.facts["token"] for each in entries if each.event == "end"}
    runs: dict[str, list[Run]] = defaultdict(list)
    for each in entries:
        if each.event == "start":
            token, wall = each.facts["token"], each.facts["wall"]
            held_at = effects[each.task_id].held.get(token, wall)
            runs[each.task_id].append(Run(token, wall, held_at, token in ended))
    return {task_id: sorted(its, key=lambda run: run.token) for task_id, its in runs.items()}
