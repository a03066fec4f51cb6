"""The one thread that keeps this worker's leases alive, and lets go of those that are not.

A thread, because the event loop stands still in a shutdown or inside a solo task; with a broker
connection of its own, because kombu's belongs to the loop. :meth:`Keeper.run_once` is the whole
logic; the loop around it only waits.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from celery_lease.core import board as beatboard
from celery_lease.core.delivery import Answer
from celery_lease.core.lease import Lost, State
from celery_lease.core.policy import Mode, OnLost
from celery_lease.worker.processes import is_alive

if TYPE_CHECKING:
    from celery_lease.core.lease import Extension
    from celery_lease.worker.leases import Held, Leases

logger = logging.getLogger(__name__)

#: Longest wait for one answer, in seconds; leases with less time left are asked for first.
ANSWER_TIMEOUT = 5.0
#: Bounds of the wait between two passes, in seconds; short leases are looked at more often.
SHORTEST_WAIT, LONGEST_WAIT = 0.02, 1.0

_Due = list[tuple["Held", "Extension"]]

_FLAGS = {Lost.TAKEN: beatboard.FLAG_TAKEN, Lost.MAX_DURATION: beatboard.FLAG_MAX_DURATION}


@dataclass(frozen=True, slots=True)
class Report:
    """What one pass did."""

    held: int = 0
    extended: int = 0
    lost: int = 0
    unknown: int = 0
    wait: float = LONGEST_WAIT  #: seconds until the next pass is worth it


@dataclass(slots=True)
class _Pass:
    """What one look at all leases found."""

    now: float
    loop_seen: float = 0.0
    held: int = 0
    wait: float = LONGEST_WAIT
    due: _Due = field(default_factory=list)
    lost: list[Held] = field(default_factory=list)
    slow: list[Held] = field(default_factory=list)


class Keeper:
    """Extends leases whose tasks beat. For one thread; shares only ``leases``, under its lock."""

    def __init__(self, leases: Leases) -> None:
        self._leases = leases
        self._clock = leases.clock
        self._warned: set[str] = set()

    def run_once(self) -> Report:
        """Look at all leases once, send what is due, and apply what the broker says."""
        pass_ = _Pass(now=self._clock.now())
        with self._leases.lock:
            pass_.loop_seen = self._loop_seen()
            for held in self._leases.held():
                if held.lease.is_held:
                    self._look(held, pass_)
        for log, helds in ((self._log_lost, pass_.lost), (self._log_slow, pass_.slow)):
            for held in helds:
                log(held)
        unknown = sum(self._extend(batch) for batch in _by_urgency(pass_.due))
        self._leases.settle_again()
        return Report(
            held=pass_.held,
            extended=len(pass_.due) - unknown,
            lost=len(pass_.lost),
            unknown=unknown,
            wait=max(pass_.wait, SHORTEST_WAIT),
        )

    def _loop_seen(self) -> float:
        """Return when the main loop last turned, or the task that runs in it last beat."""
        if not self._leases.loop_is_task:
            return self._leases.loop_seen
        return max(self._leases.loop_seen, *(held.beat for held in self._leases.held()), 0.0)

    def _look(self, held: Held, pass_: _Pass) -> None:
        lease = held.lease
        pass_.held += 1
        pass_.wait = min(pass_.wait, lease.policy.interval / 4)
        self._see(held, pass_)
        if lease.expire(pass_.now):
            self._tell_lost(held)
            pass_.lost.append(held)
        elif extension := lease.due(pass_.now):
            pass_.due.append((held, extension))
        elif self._is_slow(held, pass_.now):
            self._warned.add(lease.name)
            pass_.slow.append(held)

    def _see(self, held: Held, pass_: _Pass) -> None:
        """Take over what counts as progress: the loop's turning, the process's life, or beats."""
        lease, board = held.lease, self._leases.board
        if held.slot and lease.state is State.RESERVED:
            started = board.read_time(held.slot, beatboard.STARTED)
            if started:
                lease.start(started)
        if lease.state is State.RESERVED:
            if lease.policy.hold_reserved:
                lease.see(pass_.loop_seen)
            return
        beat = board.read_time(held.slot, beatboard.BEAT) if held.slot else 0.0
        held.beat = max(held.beat, beat, lease.started_at or 0.0)
        if lease.policy.mode is not Mode.HEARTBEAT and is_alive(held.pid):
            lease.see(pass_.now)
        elif held.slot:
            lease.see(beat, board.read_time(held.slot, beatboard.QUIET))

    def _extend(self, batch: list[tuple[Held, Extension]]) -> int:
        """Send one batch; return how many extensions were not answered."""
        left = min(held.lease.deadline for held, _ in batch) - self._clock.now()
        timeout = min(max(left, SHORTEST_WAIT), ANSWER_TIMEOUT)
        renewals = [extension.renewal for _, extension in batch]
        answers = self._leases.driver.extend(renewals, timeout=timeout)
        lost = []
        with self._leases.lock:
            for (held, extension), answer in zip(batch, answers, strict=True):
                held.lease.answered(extension, answer)
                if held.lease.state is State.LOST:
                    self._tell_lost(held)
                    lost.append(held)
                elif held.lease.is_held and held.slot:
                    self._leases.board.allow(held.slot, held.lease.deadline)
        for held in lost:
            self._log_lost(held)
        return answers.count(Answer.UNKNOWN)

    def _tell_lost(self, held: Held) -> None:
        if held.slot and held.lease.lost:
            flags = beatboard.FLAG_LOST | _FLAGS.get(held.lease.lost, 0)
            self._leases.board.flag(held.slot, flags)

    def _is_slow(self, held: Held, now: float) -> bool:
        """Whether half of a lease went by without a beat, for the first time for this task."""
        lease = held.lease
        return (
            lease.state is State.RUNNING
            and lease.policy.mode is not Mode.DAEMON
            and now - held.beat > lease.policy.extension / 2
            and now > lease.quiet_until
            and lease.name not in self._warned
        )

    def _log_slow(self, held: Held) -> None:
        lease = held.lease
        logger.warning(
            "task %s[%s] has not beaten for half of its lease of %g s; without a beat it is lost, "
            "and run elsewhere. Beat more often, raise lease_extension, or use lease_mode 'daemon'",
            lease.name,
            lease.task_id,
            lease.policy.extension,
            extra=_fields(held),
        )

    def _log_lost(self, held: Held) -> None:
        lease = held.lease
        goes_on = lease.policy.on_lost is OnLost.CONTINUE
        logger.warning(
            "lease of task %s[%s] lost (%s), delivery %d, token %d; %s",
            lease.name,
            lease.task_id,
            lease.lost,
            lease.claim.deliveries,
            lease.claim.token,
            "it runs on, its result will be discarded" if goes_on else "its next beat is told",
            extra=_fields(held),
        )


def _by_urgency(due: _Due) -> list[_Due]:
    """Ask for leases that are about to expire first: their call may not wait as long."""
    urgent, rest = [], []
    for held, extension in due:
        left = held.lease.deadline - extension.asked_at
        (urgent if left < ANSWER_TIMEOUT else rest).append((held, extension))
    return [batch for batch in (urgent, rest) if batch]


def _fields(held: Held) -> dict[str, object]:
    lease = held.lease
    return {
        "task_id": lease.task_id,
        "task_name": lease.name,
        "lease": lease.claim.tag,
        "token": lease.claim.token,
    }
