"""Keeps this worker's leases alive: one thread extends them, and drops those that are lost.

It is a thread, because the event loop stands still in a shutdown or inside a solo task; it has a
broker connection of its own, because kombu's belongs to the loop. :meth:`Keeper.run_once` is the
whole logic; the loop around it only waits. Under gevent and eventlet the thread is a greenlet: a
task that blocks the whole process blocks its keeper too, and its beats count when it yields.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from celery_lease import board as beatboard
from celery_lease.board import Outcome, spans, standstill
from celery_lease.board.spans import Span
from celery_lease.core.delivery import Answer
from celery_lease.core.lease import Extension, State
from celery_lease.core.loss import CONSEQUENCES
from celery_lease.core.policy import Mode
from celery_lease.worker import beginnings
from celery_lease.worker.backoff import Backoff
from celery_lease.worker.processes import is_alive
from celery_lease.worker.telemetry import log_messages

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_lease.worker.entries import LeaseEntry
    from celery_lease.worker.registry import LeaseRegistry

#: Longest wait for one answer, in seconds; leases with less time left are extended first.
ANSWER_TIMEOUT = 5.0
#: Bounds of the wait between two passes, in seconds; short leases are looked at more often.
SHORTEST_WAIT, LONGEST_WAIT = 0.02, 0.5
#: Seconds without a lease after which a worker's threads rest; wait between two passes then.
RESTS_AFTER, REST_WAIT = 30.0, 5.0
#: Seconds between two signs of life of the main loop in a worker that rests, and without one after
#: which it does not rest.
SLOW_LOOP, AWAKE = 3.0, 5.0


@dataclass(slots=True)
class Report:
    """The result of one pass."""

    held: int = 0
    extended: int = 0
    lost: int = 0
    unknown: int = 0  #: extensions that the broker did not answer
    unproven: int = 0  #: observed leases that heartbeat mode would have lost, first seen now
    wait: float = LONGEST_WAIT  #: seconds until the next pass


@dataclass(slots=True)
class _Pass:
    """One look at all leases, sorted by what has to be done about them."""

    now: float
    loop_seen: float
    report: Report = field(default_factory=Report)
    due: list[LeaseEntry] = field(default_factory=list)
    lost: list[LeaseEntry] = field(default_factory=list)
    slow: list[LeaseEntry] = field(default_factory=list)
    unproven: list[LeaseEntry] = field(default_factory=list)
    ended: list[LeaseEntry] = field(default_factory=list)
    storing: list[LeaseEntry] = field(default_factory=list)
    begun: list[LeaseEntry] = field(default_factory=list)


class Keeper:
    """Extends leases whose tasks beat. For one thread; shares only ``leases``, under its lock."""

    def __init__(self, leases: LeaseRegistry, lives: Callable[[int], bool] | None = None) -> None:
        """*lives* returns whether the process or greenlet of a task is alive, by its number."""
        self._leases = leases
        self._lives = lives or is_alive
        self._clock = leases.clock
        #: Names of tasks that went half of a lease without a beat; each is logged once.
        self.silent: set[str] = set()
        self._stats = leases.stats
        self._backoff = Backoff()
        self._busy_at = self._clock.now()

    def run_once(self) -> Report:
        """Look at all leases once, send the extensions that are due, and apply the answers."""
        self._stats.keeper_begins()
        standstill.looks(self._leases.board, self._clock.now())
        pass_ = self._look_at_all()
        report = pass_.report
        report.lost, report.unproven = len(pass_.lost), len(pass_.unproven)
        for log, entries in (
            (self._log_lost, pass_.lost),
            (log_messages.slow, pass_.slow),
            (log_messages.unproven, pass_.unproven),
            (log_messages.storing, pass_.storing),
        ):
            for entry in entries:
                log(entry)
        for entry in pass_.ended:
            self._leases.settle_outcome(entry)
        if not self._backoff.left(pass_.now):
            self._ask(pass_)
        if wait := self._backoff.left(pass_.now):
            report.wait = max(min(report.wait, wait), SHORTEST_WAIT)
        self._stats.keeper_waits(report.wait)
        standstill.rests(self._leases.board, self._stats.keeper_due)
        return report

    def _ask(self, pass_: _Pass) -> None:
        """Send what is due to the broker; after a silence, not before its backoff is over."""
        report = pass_.report
        for batch in _by_urgency(pass_):
            self._extend(batch, report)
        silent = report.unknown > 0 and not report.extended
        sent = silent or beginnings.send(self._leases, pass_.begun)
        if silent or not sent or self._leases.outbox.again():
            left = min((entry.lease.deadline for entry in pass_.due), default=math.inf)
            now = self._clock.now()
            self._backoff.unanswered(now, lease=self._leases.shortest, left=left - now)
        else:
            self._backoff.answered()

    def _look_at_all(self) -> _Pass:
        with self._leases.lock:
            now = self._clock.now()
            pass_ = _Pass(now, self._loop_seen(now))
            self._leases.loop_alive, self._leases.keeper_seen = pass_.loop_seen, now
            looked_at = [*self._leases.in_pool(), *self._leases.reserved.due(now)]
            report = pass_.report
            report.held = len(self._leases) - len(looked_at)
            for entry in looked_at:
                if entry.lease.is_held:
                    self._look(entry, pass_)
                else:
                    self._leases.reserved.remove(entry)
            report.wait = min(report.wait, self._leases.reserved.next_at(now) - now)
            rests = self._leases.resting = self._rests(pass_)
        report.wait = REST_WAIT if rests else max(report.wait, SHORTEST_WAIT)
        return pass_

    def _rests(self, pass_: _Pass) -> bool:
        """Whether there has been nothing to do for a while. Under the lock."""
        leases, now = self._leases, pass_.now
        if (
            len(leases)
            or leases.driver.is_tended
            or leases.outbox.left
            or not leases.intake.is_open
            or now - pass_.loop_seen > AWAKE
        ):
            self._busy_at = now
        return now - self._busy_at > RESTS_AFTER

    def _loop_seen(self, now: float) -> float:
        """Return when the main loop last turned, or when the task that runs in it last beat.

        In a solo worker a proof of progress for the task's lease counts for the loop, too: its
        beats, a quiet period, or, by its ``lease_mode``, its mere running.
        """
        seen = self._leases.loop_seen
        if not self._leases.loop_is_task:
            return seen
        running = [entry for entry in self._leases.in_pool() if entry.lease.state is State.RUNNING]
        for entry in running:
            self._see_running(entry, now)
        return max([seen, *(max(h.lease.beat, min(now, h.lease.quiet_until)) for h in running)])

    def _look(self, entry: LeaseEntry, pass_: _Pass) -> None:
        lease, report = entry.lease, pass_.report
        report.held += 1
        report.wait = min(report.wait, lease.policy.interval / 4)
        self._see(entry, pass_)
        if entry.slot is not None:
            if entry.outcome(self._leases.board) is not Outcome.UNREPORTED:
                # At once: its hooks may take longer than a lease, and must not run twice for that.
                pass_.ended.append(entry)
                return
            self._look_at_run(entry, pass_)
        if lease.expire(pass_.now, storing=entry.span.stores):
            self._flag_lost(entry)
            pass_.lost.append(entry)
        elif lease.is_due(pass_.now):
            pass_.due.append(entry)
        elif entry.slot is None:
            self._leases.reserved.put_off(entry, pass_.now)
        elif self._is_slow(entry, pass_.now):
            self.silent.add(lease.name)
            pass_.slow.append(entry)

    def _look_at_run(self, entry: LeaseEntry, pass_: _Pass) -> None:
        """Look at what only a task in the pool has: thousands of messages may wait for it."""
        if entry.begun and not entry.begin_sent:
            pass_.begun.append(entry)
        if self._is_unproven(entry, pass_.now):
            entry.unproven = True
            pass_.unproven.append(entry)
        if self._stores_long(entry, pass_.now):
            entry.storing_logged = True
            pass_.storing.append(entry)

    def _see(self, entry: LeaseEntry, pass_: _Pass) -> None:
        """Record the proof of progress: the loop's turning, the process's life, or beats."""
        lease = entry.lease
        if lease.state is State.RESERVED and (started := self._leases.started_at(entry)):
            lease.start(started)
        if lease.state is not State.RESERVED:
            self._see_running(entry, pass_.now)
        elif lease.policy.hold_reserved:
            lease.see(pass_.loop_seen)

    def _see_running(self, entry: LeaseEntry, now: float) -> None:
        lease, board = entry.lease, self._leases.board
        if entry.slot is None:
            return
        beat = board.read_time(entry.slot, beatboard.BEAT)
        if beat > entry.beat:
            self._stats.beaten(lease)
        span = spans.current(board, entry.slot)
        self._leases.paces.seen(entry, beat, span, now)
        entry.beat = max(entry.beat, beat, lease.started_at or 0.0)
        entry.quiet = board.read_time(entry.slot, beatboard.QUIET)
        entry.span = span
        by_life = self._proof_of_life(entry, now)
        entry.beat = max(entry.beat, by_life)
        if lease.policy.mode is Mode.HEARTBEAT:
            lease.see(max(beat, by_life), entry.quiet)
        elif self._is_alive(entry, now):
            lease.see(now)

    def _proof_of_life(self, entry: LeaseEntry, now: float) -> float:
        """Return the time up to which the process's life counts as beats; 0.0: it does not."""
        started = entry.lease.started_at or 0.0
        until = spans.proof_of_life(entry.span, started, entry.lease.policy.extension, now)
        return until if until and self._is_alive(entry, now) else 0.0

    def _is_alive(self, entry: LeaseEntry, now: float) -> bool:
        # None: it has started, and the pool has not reported its process yet.
        if entry.pid is None or self._lives(entry.pid):
            return True
        entry.dead_since = entry.dead_since or now
        return now - entry.dead_since < entry.grace

    def _extend(self, batch: list[LeaseEntry], report: Report) -> None:
        """Send one batch of extensions and apply the answers.

        The extensions are computed at the last moment: another batch may have waited for its
        answer, and the broker counts from the moment at which it reads this one.
        """
        leases = self._leases
        with leases.lock:
            now = self._clock.now()
            asked = [(each, due) for each in batch if (due := each.lease.begin_extension(now))]
            leases.renewing.update(due.renewal.tag for _, due in asked)
        if not asked:
            return
        left = min(entry.lease.deadline for entry, _ in asked) - now
        answers: list[Answer] = []
        try:
            answers = leases.driver.extend(
                [due.renewal for _, due in asked], timeout=min(left, ANSWER_TIMEOUT)
            )
        finally:
            self._stats.round_trips.add(self._clock.now() - now)
            self._stats.extended(now, answers, len(asked))
            with leases.lock:
                leases.renewing.clear()
                lost = self._apply(asked, answers)
        report.unknown += answers.count(Answer.UNKNOWN)
        report.extended += answers.count(Answer.HELD)
        report.lost += len(lost)
        for entry in lost:
            self._log_lost(entry)

    def _log_lost(self, entry: LeaseEntry) -> None:
        log_messages.lost(entry, stood=self._leases.stood_still(entry))

    def _apply(
        self, asked: list[tuple[LeaseEntry, Extension]], answers: list[Answer]
    ) -> list[LeaseEntry]:
        """Apply the answers to the leases and their records; return the leases that were lost."""
        now, lost = self._clock.now(), []
        for (entry, extension), answer in zip(asked, answers, strict=False):
            lease = entry.lease
            self._stats.answered(lease, answer)
            if not lease.is_held or (entry.takes_key and answer is Answer.LOST):
                continue  # it has ended; or it is being parked, and if it is not, asked for again
            # An answer after the deadline is too late: the task may know of the loss by now.
            if not lease.expire(now):
                lease.answered(extension, answer)
            if lease.state is State.LOST:
                self._flag_lost(entry)
                lost.append(entry)
            elif entry.slot:
                self._leases.board.allow(entry.slot, lease.deadline)
            elif answer is Answer.HELD:
                self._leases.reserved.put_off(entry, now)
        return lost

    def _flag_lost(self, entry: LeaseEntry) -> None:
        if entry.slot and entry.lease.lost:
            self._leases.board.flag(entry.slot, CONSEQUENCES[entry.lease.lost].flags)

    def _is_slow(self, entry: LeaseEntry, now: float) -> bool:
        """Whether half of a lease went by without a beat, for the first time of this task."""
        lease = entry.lease
        return (
            lease.state is State.RUNNING
            and lease.policy.mode is Mode.HEARTBEAT
            and now - entry.beat > lease.policy.extension / 2
            and now > lease.quiet_until
            and lease.name not in self.silent
        )

    def _stores_long(self, entry: LeaseEntry, now: float) -> bool:
        """Whether storing has taken half of a lease, and its process has not logged that; once."""
        if not entry.span.stores:
            return False
        entry.storing_since = entry.storing_since or now
        long = now - entry.storing_since > entry.lease.policy.extension / 2
        return long and entry.span is Span.STORING and not entry.storing_logged

    def _is_unproven(self, entry: LeaseEntry, now: float) -> bool:
        """Whether heartbeat mode would have lost an observed lease by now; once a lease."""
        lease = entry.lease
        return (
            lease.state is State.RUNNING
            and lease.policy.mode is Mode.OBSERVE
            and not entry.unproven
            and now >= max(entry.beat + lease.policy.extension, entry.quiet)
        )


def _by_urgency(pass_: _Pass) -> list[list[LeaseEntry]]:
    """Return the due leases in two batches, those that expire soon first: they can wait less."""
    urgent: list[LeaseEntry] = []
    rest: list[LeaseEntry] = []
    for entry in pass_.due:
        left = entry.lease.deadline - pass_.now
        (urgent if left < ANSWER_TIMEOUT else rest).append(entry)
    return [batch for batch in (urgent, rest) if batch]
