"""Merges the workers' replies with the broker's records, and keeps replies of silent workers."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from celery_lease.core.clock import SystemClock
from celery_lease.core.words import counted
from celery_lease.view.asking import node_of
from celery_lease.view.row import HELD, ORPHANED, PARKED, RESTING, SILENT, LeaseRow

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from celery_lease.core.records import Recorded, Records
    from celery_lease.view.asking import Ask

#: Seconds for which a silent worker is named. Its rows stay until their leases expire.
FORGET = 15.0
#: The most parked messages that are listed: the others are only counted.
LISTED = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """The sources of a view; each may be missing."""

    ask: Ask | None = None
    records: Records | None = None
    reap_within: float = 0.0  #: seconds until an expired lease is returned to its queue, at most
    #: Returns the identities of the workers that answered last, by node; some may share a name.
    known: Callable[[], Mapping[str, Sequence[str]]] = dict
    unavailable: str = ""  #: a sentence about facts that are unavailable on this broker
    #: Counts the messages of each queue that wait for an exclusive key.
    parked: Callable[[], Mapping[str, int]] = dict
    #: Returns the first of them of each key, at most so many.
    first_parked: Callable[[int], Sequence[Recorded]] = lambda _: ()


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """All leases at one moment."""

    rows: Sequence[LeaseRow] = ()
    parked: Sequence[LeaseRow] = ()  #: messages that wait for an exclusive key, at most LISTED
    parked_in: Mapping[str, int] = field(default_factory=dict)  #: the number of all, by queue
    workers: Sequence[str] = ()  #: names of workers that answered, or identities
    silent: Sequence[str] = ()  #: workers that answered before
    duplicates: Mapping[str, Sequence[str]] = field(default_factory=dict)  #: identities by name
    recorded: bool = False  #: the broker's records are among the sources
    unavailable: str = ""  #: a sentence about facts that are unavailable on this broker

    @property
    def all_rows(self) -> Sequence[LeaseRow]:
        return [*self.rows, *self.parked]

    @property
    def parked_count(self) -> int:
        """The number of parked messages, with those that are not listed."""
        return sum(self.parked_in.values())

    @property
    def more_parked(self) -> int:
        """The number of parked messages that are not listed; 0 if none is."""
        return max(0, self.parked_count - len(self.parked)) if self.parked else 0

    def headline(self) -> str:
        """Return the numbers of workers and leases in one line."""
        states = Counter(row.state for row in self.rows)
        counts = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
        line = f"{counted(len(self.workers), 'worker')}, {counted(len(self.rows), 'lease')}"
        line += f": {counts}" if counts else ""
        if self.parked_count:
            line += f"; {counted(self.parked_count, 'message')} parked"
        if self.silent:
            line += f"; no reply from {', '.join(self.silent)}"
        shared = [f"{len(who)} workers are named {node}" for node, who in self.duplicates.items()]
        return "; ".join([line, *shared])


@dataclass(slots=True)
class Collector:
    """The last replies of workers, and the broker's records; times are clock readings.

    One thread collects and others may read: every part is replaced as a whole.
    """

    said: dict[str, tuple[float, list[LeaseRow]]] = field(default_factory=dict)
    asked_at: float | None = None  #: when the last round ended; None: there was none
    replied: frozenset[str] = frozenset()  #: workers that replied in that round
    trouble: str = ""  #: the reason why the last round failed
    record: tuple[float, list[Recorded]] | None = None
    #: How many messages of each queue are parked, and the rows of the first.
    parked: tuple[Mapping[str, int], Sequence[LeaseRow]] = field(default_factory=lambda: ({}, ()))
    known: Mapping[str, Sequence[str]] = field(default_factory=dict)  #: see :class:`Sources`
    sources: Sources = field(default_factory=Sources)

    def collect(
        self,
        sources: Sources,
        clock: Callable[[], float],
        *,
        names: Sequence[str] = (),
        timeout: float,
        task_ids: Sequence[str] = (),
    ) -> dict[str, Any]:
        """Ask all sources; return the workers' replies.

        The records are read last: leases that only they have were claimed since the replies, or
        their holders do not answer. Parked messages are of no node: they are not listed for some
        nodes only, and not looked at for some tasks only.

        Args:
            sources: The sources.
            clock: The clock for the times of replies.
            names: Only these nodes; empty: all.
            timeout: Seconds for the workers' replies.
            task_ids: Only these tasks; empty: all.
        """
        arguments = {"task_id": list(task_ids)} if task_ids else {}
        replies = sources.ask("leases", names, timeout, arguments) if sources.ask else {}
        record = None
        if sources.records is not None:
            only = task_ids[0] if len(task_ids) == 1 else None
            record = [
                each
                for each in sources.records.leases(only)
                if (not task_ids or each.task_id in task_ids)
                and (not names or node_of(each.worker) in names)
            ]
        counts = {} if task_ids else sources.parked()
        first = sources.first_parked(LISTED) if counts and not names else ()
        self.parked = counts, [LeaseRow.recorded(each, PARKED) for each in first]
        self.heard(replies, clock(), record=record, sources=sources)
        return replies

    def heard(
        self,
        replies: Mapping[str, Any],
        at: float,
        *,
        record: list[Recorded] | None = None,
        sources: Sources | None = None,
    ) -> None:
        """Store the replies of one round, and the broker's records."""
        new = {
            label: (at, [LeaseRow.from_reply(label, node_of(label), each) for each in reply])
            for label, reply in replies.items()
            if isinstance(reply, list)
        }
        self.sources = sources or self.sources
        self.known = dict(self.sources.known())
        # A worker may be named in one reply and have its identity in the next.
        here = {*new, *map(node_of, new), *(who for each in self.known.values() for who in each)}
        held = {each.tag for each in record or ()}
        kept = {
            label: each
            for label, each in self.said.items()
            if label not in here and _is_worth_it(*each, at, held)
        }
        self.said, self.replied = {**kept, **new}, frozenset(new)
        self.record = None if record is None else (at, record)
        self.trouble, self.asked_at = "", at

    def failed(self, why: str) -> None:
        self.trouble = why

    def view(self, now: float) -> View:
        """Return all leases as of *now*, if nothing has changed since the last round."""
        said, record, (parked_in, parked) = self.said, self.record, self.parked
        answered = [label for label in said if label in self.replied]
        rows = [row.aged(now - said[label][0]) for label in answered for row in said[label][1]]
        silent = {label: each for label, each in said.items() if label not in answered}
        if record is None:
            rows += _remembered(silent, rows, now)
        else:
            then, leases = record
            rows += [
                each.aged(now - then)
                for each in _unanswered(leases, rows, silent, _Judge.of(self, answered))
            ]
        return View(
            rows=rows,
            parked=parked,
            parked_in=parked_in,
            workers=answered,
            silent=sorted(label for label, (then, _) in silent.items() if now - then < FORGET),
            duplicates={node: who for node, who in self.known.items() if len(who) > 1},
            recorded=record is not None,
            unavailable=self.sources.unavailable,
        )


def view_of(sources: Sources, timeout: float, task_ids: Sequence[str] = ()) -> View:
    """Ask all sources once, and return the leases of some tasks, or all.

    Args:
        sources: The sources.
        timeout: Seconds for the workers' replies.
        task_ids: Only these tasks; empty: all.
    """
    clock, collector = SystemClock(), Collector()
    collector.collect(sources, clock.now, timeout=timeout, task_ids=task_ids)
    return collector.view(clock.now())


def _is_worth_it(then: float, rows: Iterable[LeaseRow], now: float, held: Collection[str]) -> bool:
    """Whether to keep a worker's reply: it may be back soon, or its leases are still *held*."""
    age = now - then
    return age < FORGET or any(row.remaining > age or row.tag in held for row in rows)


def _remembered(
    silent: Mapping[str, tuple[float, list[LeaseRow]]], rows: Collection[LeaseRow], now: float
) -> list[LeaseRow]:
    """Return the last rows of silent workers, unless another one has the task, or time is over.

    For a broker without records: it is unknown whether they still hold the leases.
    """
    with_others = {row.id for row in rows}
    return [
        replace(row.aged(now - then), state=SILENT, heard_age=now - then)
        for then, last in silent.values()
        for row in last
        if row.id not in with_others and (now - then < FORGET or row.remaining > now - then)
    ]


@dataclass(frozen=True, slots=True)
class _Judge:
    """Determines the state of a recorded lease that its holder did not report."""

    askable: bool
    nodes: frozenset[str]  #: nodes that answered
    answered: frozenset[str]  #: identities that answered, or names where a worker has none
    reap_within: float

    @classmethod
    def of(cls, collector: Collector, answered: Sequence[str]) -> _Judge:
        sources, who = collector.sources, set[str]()
        for label in answered:
            who |= set(collector.known.get(node_of(label), ())) or {node_of(label)}
        nodes = frozenset(map(node_of, answered))
        return cls(sources.ask is not None, nodes, frozenset(who), sources.reap_within)

    def state(self, lease: Recorded) -> str:
        if lease.resting:
            return RESTING
        if not self.askable or not lease.worker:
            return HELD
        replied = lease.worker in self.answered or node_of(lease.worker) in self.answered
        return HELD if replied and lease.remaining > 0 else ORPHANED  # claimed since it replied

    def runs_again_in(self, lease: Recorded) -> float:
        return round(max(0.0, lease.remaining) + self.reap_within, 3)


def _unanswered(
    record: Iterable[Recorded],
    rows: Collection[LeaseRow],
    silent: Mapping[str, tuple[float, list[LeaseRow]]],
    judge: _Judge,
) -> list[LeaseRow]:
    """Return rows for recorded leases that no worker reported, with earlier facts about them."""
    tags = {row.tag for row in rows}
    before = {row.tag: row for _, last in silent.values() for row in last}
    found = []
    for lease in record:
        if lease.tag in tags:
            continue
        row = LeaseRow.recorded(lease, judge.state(lease))
        if row.hostname in judge.nodes:
            row = replace(row, shown_as=row.worker)  # a former process of that node, or another one
        if row.state in (ORPHANED, RESTING):
            row = replace(row, runs_again_in=judge.runs_again_in(lease))
        if (old := before.get(lease.tag)) is not None:
            row = replace(
                row,
                started_at=old.started_at,
                extension=old.extension,
                progress=old.progress,
                max_deliveries=old.max_deliveries,
            )
        found.append(row)
    return found
