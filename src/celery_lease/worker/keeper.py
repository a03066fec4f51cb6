"""The one thread that keeps this worker's leases alive, and lets go of those that are not.

A thread, because the event loop stands still in a shutdown or inside a solo task; with a broker
connection of its own, because kombu's belongs to the loop. :meth:`Keeper.run_once` is the whole
logic; the loop around it only waits. Under gevent and eventlet the thread is a green one: a task
that blocks the whole process blocks its keeper too, and its beats count when it lets go.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from celery_lease.core import board as beatboard
from celery_lease.core.board import Outcome
from celery_lease.core.delivery import Answer
from celery_lease.core.lease import Lost, State
from celery_lease.core.policy import Mode
from celery_lease.worker import notices
from celery_lease.worker.patience import Patience
from celery_lease.worker.processes import is_alive

if TYPE_CHECKING:
    from celery_lease.core.lease import Extension
    from celery_lease.worker.held import Held
    from celery_lease.worker.leases import Leases

#: Longest wait for one answer, in seconds; leases with less time left are asked for first.
ANSWER_TIMEOUT = 5.0
#: Bounds of the wait between two passes, in seconds; short leases are looked at more often.
SHORTEST_WAIT, LONGEST_WAIT = 0.02, 0.5

_FLAGS = {
    Lost.TAKEN: beatboard.FLAG_TAKEN,
    Lost.MAX_DURATION: beatboard.FLAG_MAX_DURATION,
    Lost.LIMIT: beatboard.FLAG_LIMIT,
}


@dataclass(slots=True)
class Report:
    """What one pass did."""

    held: int = 0
    extended: int = 0
    lost: int = 0
    unknown: int = 0  #: extensions that were not answered
    unproven: int = 0  #: observed leases that heartbeat mode would have lost, first seen now
    wait: float = LONGEST_WAIT  #: seconds until the next pass is worth it


@dataclass(slots=True)
class _Pass:
    """One look at all leases."""

    now: float
    loop_seen: float
    report: Report = field(default_factory=Report)
    due: list[Held] = field(default_factory=list)
    lost: list[Held] = field(default_factory=list)
    slow: list[Held] = field(default_factory=list)
    unproven: list[Held] = field(default_factory=list)


class Keeper:
    """Extends leases whose tasks beat. For one thread; shares only ``leases``, under its lock."""

    def __init__(self, leases: Leases) -> None:
        self._leases = leases
        self._clock = leases.clock
        #: Names of tasks that half of a lease went by without a beat of; each is told of once.
        self.silent: set[str] = set()
        self._tally = leases.tally
        self._patience = Patience()

    def run_once(self) -> Report:
        """Look at all leases once, send what is due, and apply what the broker says."""
        self._tally.keeper_begins()
        pass_ = self._look_at_all()
        report = pass_.report
        report.lost, report.unproven = len(pass_.lost), len(pass_.unproven)
        for tell, helds in (
            (notices.lost, pass_.lost),
            (notices.slow, pass_.slow),
            (notices.unproven, pass_.unproven),
        ):
            for held in helds:
                tell(held)
        if not self._patience.left(pass_.now):
            self._ask(pass_)
        if wait := self._patience.left(pass_.now):
            report.wait = max(min(report.wait, wait), SHORTEST_WAIT)
        self._tally.keeper_waits(report.wait)
        return report

    def _ask(self, pass_: _Pass) -> None:
        """Tell the broker what is due; after a silence, not before it is likely to answer."""
        report = pass_.report
        for batch in _by_urgency(pass_):
            self._extend(batch, report)
        silent = report.unknown > 0 and not report.extended
        if silent or self._leases.settling.again():
            left = min((held.lease.deadline for held in pass_.due), default=math.inf)
            now = self._clock.now()
            self._patience.unanswered(now, lease=self._leases.shortest, left=left - now)
        else:
            self._patience.answered()

    def _look_at_all(self) -> _Pass:
        with self._leases.lock:
            now = self._clock.now()
            pass_ = _Pass(now, self._loop_seen(now))
            self._leases.loop_alive, self._leases.keeper_seen = pass_.loop_seen, now
            for held in self._leases.held():
                if held.lease.is_held:
                    self._look(held, pass_)
        pass_.report.wait = max(pass_.report.wait, SHORTEST_WAIT)
        return pass_

    def _loop_seen(self, now: float) -> float:
        """Return when the main loop last turned, or the task that runs in it last proved its life.

        What counts for that task's lease counts for the loop: its beats, a quiet period, or, by
        its ``lease_mode``, that it runs at all.
        """
        seen = self._leases.loop_seen
        if not self._leases.loop_is_task:
            return seen
        running = [held for held in self._leases.held() if held.lease.state is State.RUNNING]
        for held in running:
            self._see_running(held, now)
        return max([seen, *(max(h.lease.beat, min(now, h.lease.quiet_until)) for h in running)])

    def _look(self, held: Held, pass_: _Pass) -> None:
        lease, report = held.lease, pass_.report
        report.held += 1
        report.wait = min(report.wait, lease.policy.interval / 4)
        self._see(held, pass_)
        if self._is_unproven(held, pass_.now):
            held.unproven = True
            pass_.unproven.append(held)
        if lease.expire(pass_.now):
            self._tell_lost(held)
            pass_.lost.append(held)
        elif lease.due(pass_.now):
            pass_.due.append(held)
        elif self._is_slow(held, pass_.now):
            self.silent.add(lease.name)
            pass_.slow.append(held)

    def _see(self, held: Held, pass_: _Pass) -> None:
        """Take over what counts as progress: the loop's turning, the process's life, or beats."""
        lease = held.lease
        if lease.state is State.RESERVED and (started := self._leases.started_at(held)):
            lease.start(started)
        if lease.state is State.RUNNING:
            self._see_running(held, pass_.now)
        elif lease.policy.hold_reserved:
            lease.see(pass_.loop_seen)

    def _see_running(self, held: Held, now: float) -> None:
        lease, board = held.lease, self._leases.board
        if held.slot is None:
            return
        beat = board.read_time(held.slot, beatboard.BEAT)
        if beat > held.beat:
            self._tally.beaten(lease)
        held.beat = max(held.beat, beat, lease.started_at or 0.0)
        held.quiet = board.read_time(held.slot, beatboard.QUIET)
        if board.read_outcome(held.slot) is Outcome.DONE:
            # What came of it is stored: it must not run again, however late it is acknowledged.
            held.beat = now
            lease.see(now)
        elif lease.policy.mode is Mode.HEARTBEAT:
            lease.see(beat, held.quiet)
        elif held.pid is None or is_alive(held.pid):  # started, and the pool has not told by whom
            lease.see(now)

    def _extend(self, batch: list[Held], report: Report) -> None:
        """Send one batch and apply the answers.

        What is asked is worked out at the last moment: another batch may have waited for its
        answer, and the broker counts from when it reads this.
        """
        leases = self._leases
        with leases.lock:
            now = self._clock.now()
            asked = [(held, due) for held in batch if (due := _still_due(held, now))]
            leases.renewing.update(due.renewal.tag for _, due in asked)
        if not asked:
            return
        left = min(held.lease.deadline for held, _ in asked) - now
        answers: list[Answer] = []
        try:
            answers = leases.driver.extend(
                [due.renewal for _, due in asked], timeout=min(left, ANSWER_TIMEOUT)
            )
        finally:
            self._tally.trips.add(self._clock.now() - now)
            with leases.lock:
                leases.renewing.clear()
                lost = self._apply(asked, answers)
        report.unknown += answers.count(Answer.UNKNOWN)
        report.extended += answers.count(Answer.HELD)
        report.lost += len(lost)
        for held in lost:
            notices.lost(held)

    def _apply(self, asked: list[tuple[Held, Extension]], answers: list[Answer]) -> list[Held]:
        """Write the answers into the leases and to their tasks; return what was lost."""
        now, lost = self._clock.now(), []
        for (held, extension), answer in zip(asked, answers, strict=False):
            lease = held.lease
            self._tally.answered(lease, answer)
            if not lease.is_held:
                continue
            # An answer that comes after the deadline comes too late: the task may know by now.
            if not lease.expire(now):
                lease.answered(extension, answer)
            if lease.state is State.LOST:
                self._tell_lost(held)
                lost.append(held)
            elif held.slot:
                self._leases.board.allow(held.slot, lease.deadline)
        return lost

    def _tell_lost(self, held: Held) -> None:
        if held.slot and held.lease.lost:
            flags = beatboard.FLAG_LOST | _FLAGS.get(held.lease.lost, 0)
            self._leases.board.flag(held.slot, flags)

    def _is_slow(self, held: Held, now: float) -> bool:
        """Whether half of a lease went by without a beat, for the first time for this task."""
        lease = held.lease
        return (
            lease.state is State.RUNNING
            and lease.policy.mode is Mode.HEARTBEAT
            and now - held.beat > lease.policy.extension / 2
            and now > lease.quiet_until
            and lease.name not in self.silent
        )

    def _is_unproven(self, held: Held, now: float) -> bool:
        """Whether heartbeat mode would have lost an observed lease by now; once for each lease."""
        lease = held.lease
        return (
            lease.state is State.RUNNING
            and lease.policy.mode is Mode.OBSERVE
            and not held.unproven
            and now >= max(held.beat + lease.policy.extension, held.quiet)
        )


def _still_due(held: Held, now: float) -> Extension | None:
    """Return the extension to send; none for a lease that ended, or is about to be found lost."""
    return held.lease.due(now) if now < held.lease.deadline else None


def _by_urgency(pass_: _Pass) -> list[list[Held]]:
    """Ask for leases that are about to expire first: their call may not wait as long."""
    urgent: list[Held] = []
    rest: list[Held] = []
    for held in pass_.due:
        left = held.lease.deadline - pass_.now
        (urgent if left < ANSWER_TIMEOUT else rest).append(held)
    return [batch for batch in (urgent, rest) if batch]
