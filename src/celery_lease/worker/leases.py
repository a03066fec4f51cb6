"""What happens to the leases of this worker: messages come, tasks start and end, all are let go.

What must be told to the broker is told outside of the table's lock, by whichever thread caused it,
or later by the keeper: see :mod:`.settling`.

Invariant: a lease leaves the table before its message is settled, so no extension is begun after;
and a message whose extension is under way at that moment goes back only when that is over.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from celery_lease.core.board import Outcome
from celery_lease.core.delivery import Answer, Claim, Terms
from celery_lease.core.lease import Lease, Lost, State
from celery_lease.worker import compat, forks, notices, poison
from celery_lease.worker.held import Ending, Handle, Held, ticket
from celery_lease.worker.settling import Settling
from celery_lease.worker.table import ENDED, Table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from celery_lease.core.board import Board
    from celery_lease.core.clock import Clock
    from celery_lease.core.delivery import Driver
    from celery_lease.core.policy import LeasePolicy


class Leases(Table):
    """The worker's leases; implements :class:`~celery_lease.core.delivery.Holder`."""

    def __init__(
        self,
        driver: Driver,
        board: Board,
        clock: Clock,
        worker_id: str,
        policies: Callable[[str, Mapping[str, object]], LeasePolicy | None],
    ) -> None:
        """*policies* finds a policy by a task's name and a call's own options; None: no lease."""
        super().__init__(board, clock, worker_id)
        self.driver = driver
        self.loop_seen = clock.now()  #: when the main loop last turned; main thread writes
        self.loop_alive = self.keeper_seen = self.loop_seen  #: for probes; the keeper writes both
        self.loop_is_task = False  #: tasks run in the main loop (solo): their beats are its life
        self.on_claimed: Callable[[Lease], None] = lambda _: None
        self.hurry: Callable[[], None] = lambda: None  #: tasks in flight have no more time
        #: Called before the main process itself stores how the task of a lease ended.
        self.on_end: Callable[[str], None] = lambda _: None
        self.publishes = False  #: what tasks say of their progress is published
        #: Where a queue's dead letters go; None: the broker has an order of its own for them.
        self.dead_letter_queue_of: Callable[[str], str] | None = None
        self._policies = policies
        self.renewing: set[str] = set()  #: tags whose extension is under way; under the lock
        self.door_closed = False  #: no message is taken and no task started any more
        self.settling = Settling(clock)  #: what the broker has still to be told
        self._homeless = 0  # messages of a failed claim that are not back in their queue yet

    # A channel asks (Holder).

    def terms(self, message: Any) -> Terms | None:
        """Return the terms for a leased task's message; None for every other message."""
        name, task_id, options = compat.task_of(message)
        policy = self._policies(name, options) if name else None
        if policy is None:
            return None
        message.lease_policy = policy
        about = {"task": name, "id": task_id, "worker": self.worker_id}
        return Terms(seconds=policy.extension, longest=policy.max_duration, about=about)

    def claimed(self, claim: Claim, message: Any) -> None:
        """Hold a message from the moment it was claimed, before Celery sees it."""
        name, task_id, _ = compat.task_of(message)
        with self.lock:
            lease = Lease(
                claim, message.lease_policy, task_id=task_id, name=name, tell=self.tally.changed
            )
            self._put(Held(lease, worker=self.worker_id))
        message.lease = Handle(self, claim.tag, claim.token)
        self.on_claimed(lease)

    def complete(self, tag: str) -> None:
        """Acknowledge a message; a former holder's acknowledgement changes nothing."""
        if self._take(tag, State.COMPLETED, Ending.COMPLETED) is not None:
            self.settling.tell(self.driver.complete, [tag])

    def hand_back(
        self,
        tags: Sequence[str],
        *,
        front: bool = True,
        orderly: bool = True,
        ending: Ending = Ending.HANDED_OVER,
    ) -> None:
        """Return messages to their queues; an orderly return is not counted as a loss."""

        def tell(tags: list[str]) -> list[Answer]:
            return self.driver.hand_back(tags, orderly=orderly, front=front)

        with self.lock:
            taken = [tag for tag in tags if self._take(tag, State.RELEASED, ending)]
            later = [tag for tag in taken if tag in self.renewing]
            if later:
                # The extension under way could reach the broker last, and hide the message again.
                self.settling.later(tell, later)
        self.settling.tell(tell, [tag for tag in taken if tag not in later])

    def unclaimed(self, attempt: Any) -> None:
        """Return a message whose claim was not confirmed; the keeper goes on until it is."""
        with self.lock:
            self._homeless += 1
        self.settling.later(self._return_unclaimed, [attempt])

    @property
    def backlogged(self) -> bool:
        """Whether nothing more is to be taken: it could not go back, be started, or be wanted."""
        return self._homeless > 0 or self.door_closed or self.board.is_full

    def _return_unclaimed(self, attempts: list[Any]) -> list[Answer]:
        answers = self.driver.return_unclaimed(attempts)
        if Answer.UNKNOWN not in answers:
            with self.lock:
                self._homeless -= 1
        return answers

    def drop(self, tag: str) -> None:
        """Drop a message that nobody shall run again.

        Where the broker has a dead-letter queue of its own, it goes back: that queue gets it when
        its deliveries are used up, as after a plain reject.
        """
        with self.lock:
            held = self._held.get(tag)
        if held is not None and held.lease.claim.delivery_limit is not None:
            self.hand_back([tag], front=False, orderly=False)
        elif self.driver.capabilities.drops:
            if self._take(tag, State.COMPLETED, Ending.COMPLETED) is not None:
                self.settling.tell(self.driver.drop, [tag])
        else:
            self.complete(tag)

    def lost(self, tags: Sequence[str]) -> None:
        """Lose leases at once whose messages are with others, and tell their tasks."""
        with self.lock:
            helds = [held for tag in tags if (held := self._held.get(tag)) and held.lease.is_held]
            for held in helds:
                held.lease.lose(Lost.TAKEN)
                if held.slot is not None:
                    self.board.flag(held.slot, ENDED)
            running = [held for held in helds if self._has_started(held)]
        for held in running:
            notices.lost(held)

    # A request asks.

    def start(self, tag: str) -> dict[str, Any] | None:
        """Prepare for a task to run; return the ticket it needs, or None if the lease is gone.

        Raises:
            BoardFull: Too many tasks are in this worker's pool; the message was handed back.
            TooManyDeliveries: The message was lost too often: to be buried, not run.
        """
        with self.lock:
            held = self._held.get(tag)
            if held is None or self.door_closed or self._is_over(held):
                return None
            poison.refuse(held.lease, self.dead_letter_queue_of)
            if held.slot is None:
                held.slot = self.board.lend()
                self.board.allow(held.slot, held.lease.deadline)
            return ticket(self, held.lease, held.slot)

    def accepted(self, tag: str, pid: int | None) -> None:
        """Take note of the process that runs a task.

        What the task wrote itself comes first: the pool may tell long after it happened, and a
        beat that is dated later than it was would extend the lease for nothing.
        """
        with self.lock:
            held = self._held.get(tag)
            if held is not None:
                held.pid = pid
                held.lease.start(self.started_at(held) or self.clock.now())

    def discard(self, tag: str) -> None:
        """Drop a lease whose task came to nothing; a message that nobody took goes back at once.

        A task that learned of its loss by itself may end before the keeper looks. One that was not
        let in, because the worker stops, has lost nothing.
        """
        with self.lock:
            held = self._held.get(tag)
            unseen = held is not None and held.lease.expire(self.clock.now())
            lost = held is None or not held.lease.is_held or not self.door_closed
        if held is not None and unseen:
            notices.lost(held, notices.THROWN_AWAY)
        ending = Ending.LOST if lost else Ending.HANDED_BACK
        self.hand_back([tag], orderly=not lost, ending=ending)

    def bury(self, tag: str, queue: str) -> Answer:
        """Move a message to a dead-letter queue; its lease ends here, whatever the answer is."""
        if self._take(tag, State.COMPLETED, Ending.BURIED) is None:
            return Answer.LOST
        answer = self.driver.bury(tag, queue)
        return self.driver.bury(tag, queue) if answer is Answer.UNKNOWN else answer

    def bury_malformed(self, tag: str) -> str | None:
        """Move a message that is no task's to a dead-letter queue; return its name, if it is there.

        Where that was not answered, it comes back when its lease expires.
        """
        with self.lock:
            held = self._held.get(tag)
        if held is None or self.dead_letter_queue_of is None:
            return None
        queue = self.dead_letter_queue_of(held.lease.claim.queue)
        return queue if self.bury(tag, queue) is Answer.HELD else None

    def process_ended(self, tag: str, cause: object) -> None:
        """Say that the process of a task ended under it, if that is news here."""
        with self.lock:
            held = self._held.get(tag)
        if held is not None:
            notices.process_gone(held, cause)

    def end_soon(self, tag: str) -> None:
        """Have the keeper return a message whose task is being ended; for signal handlers."""
        with self.lock:
            if self._take(tag, State.RELEASED, Ending.ENDED):
                back = partial(self.driver.hand_back, orderly=True, front=True)
                self.settling.later(back, [tag])

    # The keeper and the steps ask.

    def hand_back_unstarted(self, *, flushed: bool = False) -> None:
        """Return all messages whose task does not run yet, so that another worker may run them.

        Also those that the pool has got, where they would only wait for the tasks that run. If a
        process takes one after all, its record tells it not to start.

        Args:
            flushed: Celery reconnects and has made its pool forget every task that it did not
                see accepted, even if a process runs it by now.
        """
        with self.lock:
            waiting = [
                tag
                for tag, held in self._held.items()
                if held.pid is None and (self._withdraw(held) or flushed)
            ]
        # Newest first, so that the oldest ends up at the front of the line.
        self.hand_back(waiting[::-1], ending=Ending.HANDED_BACK)

    def settle_outcomes(self) -> None:
        """Settle what task processes have ended, without waiting for the pool to tell of it.

        The main loop, which hears of it, stands still while a worker stops.
        """
        for held in self.running():
            tag, outcome = held.lease.claim.tag, self._outcome(held)
            if outcome is Outcome.DONE:
                self.complete(tag)
            elif outcome is Outcome.HANDED_OVER:
                self.hand_back([tag])
            elif outcome is Outcome.DISCARDED:
                self.discard(tag)

    def _outcome(self, held: Held) -> Outcome:
        return self.board.read_outcome(held.slot) if held.slot else Outcome.UNTOLD

    def close(self) -> None:
        """Free memory and connections.

        Leases that are held all the same stay as they are at the broker, and expire; so do those
        of which it was not told that they ended.
        """
        notices.untold(self.settling.left)
        with self.lock:
            left = [held for held in self._held.values() if held.lease.is_held]
        notices.left_behind(left)
        forks.forget(self.lock)
        self.board.close()
        self.driver.close()
