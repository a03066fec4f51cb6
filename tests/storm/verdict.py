"""What became of the messages, by the ledger and the broker."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from harness.ledger import Entry


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The counts at the end; kinds are those of the weather."""

    sent: Counter[str]
    completed: Counter[str]
    lost: dict[str, str]  #: task id to kind: sent, never completed
    twice: dict[str, str]  #: task id to kind: begun more than once
    left: int  #: entries that the broker still keeps
    restarts: int
    killed: int  #: workers that did not leave by themselves
    failed: int = 0  #: workers that left with another exit code than 0
    moved: int = 0  #: messages delivered more than once: handed back by a stopping worker
    seconds: float = field(default=0.0)

    @property
    def good(self) -> bool:
        """Whether every message was run once and nothing is left of it."""
        return not (self.lost or self.twice or self.left or self.killed or self.failed)

    def table(self) -> str:
        """Return the counts for people, as a Markdown table."""
        lost, twice = Counter(self.lost.values()), Counter(self.twice.values())
        head = ("messages", "sent", "completed", "lost", "run twice")
        rows = [
            (kind, self.sent[kind], self.completed[kind], lost[kind], twice[kind])
            for kind in sorted(self.sent)
        ]
        rows.append(("all", self.sent.total(), self.completed.total(), lost.total(), twice.total()))
        cells = [head, ("---", *["---:"] * 4), *(tuple(map(_number, row)) for row in rows)]
        return "\n".join(f"| {' | '.join(row)} |" for row in cells)

    def __str__(self) -> str:
        return (
            f"{self.table()}\n\n{self.seconds:.0f} s, {self.restarts} restarts by SIGTERM; "
            f"{self.moved} messages were handed back and ran elsewhere; {self.left} entries left "
            f"at the broker; workers that had to be killed: {self.killed}, that failed: "
            f"{self.failed}"
        )


def _number(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def judge(
    sent: Mapping[str, str], entries: Sequence[Entry]
) -> tuple[Counter[str], dict[str, str], dict[str, str], int]:
    """Hold the ledger against what was sent; return completed, lost, run twice, and moved."""
    starts = Counter(each.task_id for each in entries if each.event == "start")
    ends = {each.task_id for each in entries if each.event == "end"}
    moved = {
        each.task_id
        for each in entries
        if each.event == "start" and each.facts.get("deliveries", 1) > 1
    }
    return (
        Counter(kind for task_id, kind in sent.items() if task_id in ends),
        {task_id: kind for task_id, kind in sent.items() if task_id not in ends},
        {task_id: sent[task_id] for task_id, count in starts.items() if count > 1},
        len(moved),
    )
