"""All leases of this worker: the one place that knows which messages it holds.

Touched by the main thread (messages arrive, requests start and end), by the pool's threads in
pools that have some, and by the keeper. One lock guards the table and the leases in it; it is
held for table work only, never across a broker call, a callback or a log line, and is taken
around a fork so that no child is born while it is held. What must be told to the broker is told
outside of the lock, by whichever thread caused it; what the broker did not answer is told again
by the keeper.

Invariant: a lease leaves the table before its message is settled, so it is never extended after.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from celery_lease.core import board as beatboard
from celery_lease.core.delivery import Answer, Claim, Terms
from celery_lease.core.lease import Lease, State
from celery_lease.worker import compat

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from celery_lease.core.board import Board, Slot
    from celery_lease.core.clock import Clock
    from celery_lease.core.delivery import Driver
    from celery_lease.core.policy import LeasePolicy

logger = logging.getLogger(__name__)

@dataclass(slots=True)
class Held:
    """A lease with what this worker knows of the task under it."""

    lease: Lease
    slot: Slot | None = None
    pid: int | None = None
    beat: float = 0.0  #: the task's own last beat, whatever counts as one for the lease


@dataclass(frozen=True, slots=True)
class Handle:
    """What a request keeps of its lease."""

    leases: Leases
    tag: str


class Leases:
    """The worker's leases; implements :class:`~celery_lease.core.delivery.Holder`."""

    def __init__(
        self,
        driver: Driver,
        board: Board,
        clock: Clock,
        worker_id: str,
        policies: Callable[[str, Mapping[str, object]], LeasePolicy | None],
    ) -> None:
        """*policies* finds the policy for a task's name and a call's own options; None: no lease."""
        self.driver = driver
        self.board = board
        self.clock = clock
        self.worker_id = worker_id
        self.loop_seen = clock.now()  #: when the main loop last turned; main thread writes
        self.loop_is_task = False  #: tasks run in the main loop (solo): their beats are its life
        self.on_claimed: Callable[[Lease], None] = lambda _: None
        self._policies = policies
        self.lock = threading.Lock()  #: guards the table and the leases in it; see the module
        self._held: dict[str, Held] = {}
        self._unsettled: deque[tuple[Callable[..., list[Answer]], list[Any]]] = deque()
        self._homeless = 0  # messages of a failed claim that are not back in their queue yet
        _all.add(self)

    # A channel asks (Holder).

    def terms(self, message: Any) -> Terms | None:
        """Return the terms for a leased task's message; None for every other message."""
        name, task_id, options = compat.task_of(message)
        policy = self._policies(name, options) if name else None
        if policy is None:
            return None
        message.lease_policy = policy
        about = {"task": name, "id": task_id, "worker": self.worker_id}
        return Terms(seconds=policy.extension, about=about)

    def claimed(self, claim: Claim, message: Any) -> None:
        """Hold a message from the moment it was claimed, before Celery sees it."""
        name, task_id, _ = compat.task_of(message)
        lease = Lease(claim, message.lease_policy, task_id=task_id, name=name)
        with self.lock:
            self._held[claim.tag] = Held(lease)
        message.lease = Handle(self, claim.tag)
        self.on_claimed(lease)

    def complete(self, tag: str) -> None:
        """Acknowledge a message; a former holder's acknowledgement changes nothing."""
        held = self._take(tag, State.COMPLETED)
        if held is not None:
            self._settle(self.driver.complete, [tag])

    def hand_back(
        self, tags: Sequence[str], *, front: bool = True, orderly: bool = True
    ) -> None:
        """Return messages to their queues; an orderly return is not counted as a loss."""
        held = [tag for tag in tags if self._take(tag, State.RELEASED)]

        def tell(tags: list[str]) -> list[Answer]:
            return self.driver.hand_back(tags, orderly=orderly, front=front)

        self._settle(tell, held)

    def keeps(self, tag: str) -> bool:
        """Tell whether a task runs on although its channel closes."""
        with self.lock:
            held = self._held.get(tag)
            return held is not None and held.slot is not None

    def unclaimed(self, attempt: Any) -> None:
        """Return a message whose claim was not confirmed; the keeper goes on until it is."""
        self._homeless += 1
        self._unsettled.append((self._return_unclaimed, [attempt]))

    @property
    def backlogged(self) -> bool:
        """Whether messages wait here because the broker refuses to take them back."""
        return self._homeless > 0

    def _return_unclaimed(self, attempts: list[Any]) -> list[Answer]:
        answers = self.driver.return_unclaimed(attempts)
        if Answer.UNKNOWN not in answers:
            self._homeless -= 1
        return answers

    # A request asks.

    def start(self, tag: str) -> dict[str, Any] | None:
        """Prepare for a task to run; return the ticket it needs, or None if the lease is gone.

        Raises:
            BoardFull: Too many tasks are in this worker's pool; the message was handed back.
        """
        with self.lock:
            held = self._held.get(tag)
            if held is None or not held.lease.is_held or held.lease.expire(self.clock.now()):
                return None
            if held.slot is None:
                held.slot = self.board.lend()
                self.board.allow(held.slot, held.lease.deadline)
            return self._ticket(held, held.slot)

    def accepted(self, tag: str, pid: int | None) -> None:
        """Take note of the process that runs a task."""
        with self.lock:
            held = self._held.get(tag)
            if held is not None:
                held.pid = pid
                held.lease.start(self.clock.now())

    def is_lost(self, tag: str) -> bool:
        """Whether this worker must not act under the lease any more."""
        with self.lock:
            held = self._held.get(tag)
            if held is None:
                return True
            return not held.lease.is_held or held.lease.expire(self.clock.now())

    def discard(self, tag: str) -> None:
        """Drop a lost lease at the end of its task; what nobody took goes back at once."""
        self.hand_back([tag], orderly=False)

    # The keeper and the steps ask.

    def held(self) -> Iterable[Held]:
        """Return all leases; only for who holds :attr:`lock`, and only as long."""
        return self._held.values()

    def unstarted(self) -> list[str]:
        """Return the tags of messages that no pool has got yet, newest first."""
        with self.lock:
            return [tag for tag, held in self._held.items() if held.slot is None][::-1]

    def settle_again(self) -> int:
        """Tell the broker once more what it did not answer; return what is still unanswered."""
        for _ in range(len(self._unsettled)):
            self._settle(*self._unsettled.popleft())
        return len(self._unsettled)

    def __len__(self) -> int:
        return len(self._held)

    def _take(self, tag: str, state: State) -> Held | None:
        with self.lock:
            held = self._held.pop(tag, None)
            if held is None:
                return None
            held.lease.end(state)
            if held.slot is not None:
                self.board.give_back(held.slot)
            return held

    def _settle(self, tell: Callable[..., list[Answer]], what: list[Any]) -> None:
        if not what:
            return
        answers = tell(what)
        again = [each for each, answer in zip(what, answers, strict=True) if answer is Answer.UNKNOWN]
        if again:
            self._unsettled.append((tell, again))
        for each, answer in zip(what, answers, strict=True):
            if answer is Answer.LOST:
                logger.info("lease %s had ended: nothing was changed at the broker", each)

    def _ticket(self, held: Held, slot: Slot) -> dict[str, Any]:
        claim, policy = held.lease.claim, held.lease.policy
        return {
            "board": self.board.address,
            "slot": slot.index,
            "generation": slot.generation,
            "tag": claim.tag,
            "token": claim.token,
            "deliveries": claim.deliveries,
            "extension": policy.extension,
            "on_lost": str(policy.on_lost),
            "interruptible": policy.interruptible,
            "worker": self.worker_id,
        }


# Every table of this process, for the fork hooks. Written by the main thread.
_all: weakref.WeakSet[Leases] = weakref.WeakSet()


def _hold() -> None:
    for leases in _all:
        leases.lock.acquire()


def _let_go() -> None:
    for leases in _all:
        leases.lock.release()


os.register_at_fork(before=_hold, after_in_parent=_let_go, after_in_child=_let_go)
