"""The registry of this worker's leases, and their life in it: claim, start, end, return.

Messages are settled at the broker outside of the registry's lock, by the thread that ended the
lease, or later by the keeper: see :mod:`.outbox`.

Invariant: a lease leaves the registry before its message is settled, so no extension is begun
after; and a message whose extension is under way at that moment goes back only when that is over.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

from celery.exceptions import TimeLimitExceeded

from celery_lease.board import Board, Outcome, granting, spans
from celery_lease.core.delivery import Answer, Claim, Terms
from celery_lease.core.keys import Exclusive, KeyAnswer, Verdict
from celery_lease.core.lease import Lease, State
from celery_lease.core.loss import FLAGS_ENDED, LossReason
from celery_lease.core.words import storable
from celery_lease.settings import LeaseConfigError
from celery_lease.worker import beginnings, compat, crashes, fork_safety, loss, poison
from celery_lease.worker.entries import Ending, LeaseEntry, LeaseHandle, ticket
from celery_lease.worker.entry_table import EntryTable
from celery_lease.worker.intake import Intake
from celery_lease.worker.outbox import Outbox
from celery_lease.worker.telemetry import log_messages

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from celery.worker.request import Request

    from celery_lease.core.clock import Clock
    from celery_lease.core.driver import Driver
    from celery_lease.core.policy import LeasePolicy


class LeaseRegistry(EntryTable):
    """The worker's leases; implements :class:`~celery_lease.core.delivery.Holder`."""

    def __init__(
        self,
        driver: Driver,
        board: Board,
        clock: Clock,
        worker_id: str,
        policies: Callable[[str, Mapping[str, object]], LeasePolicy | None],
        *,
        is_plain: Callable[[str], bool] = lambda _: False,
        accept: frozenset[str] | None = None,
        dead_letter_queue_of: Callable[[str], str] | None = None,
        loop_is_task: bool = False,
        publishes: bool = False,
        withdraw_plain: Callable[[Any], bool] = lambda _: False,
        key_of: Callable[[Any, str, LeasePolicy, Any], Exclusive | None] = lambda *_: None,
        on_claimed: Callable[[Lease], None] = lambda _: None,
        on_end: Callable[[str], None] = lambda _: None,
        hurry: Callable[[], None] = lambda: None,
    ) -> None:
        """Create an empty registry.

        Args:
            driver: The driver of the broker that delivers the messages.
            board: The board to which task processes write their beats.
            clock: This host's clock.
            worker_id: Unique among all workers, also those of the same node name.
            policies: Returns the policy for a task's name and its call's options; None: no lease.
            is_plain: Returns whether no message of a task, by its name, gets a lease.
            accept: Content types that the worker accepts; None: kombu's defaults, JSON and other
                harmless ones.
            dead_letter_queue_of: Returns the name of a queue's dead-letter queue; None: the broker
                dead-letters messages by itself.
            loop_is_task: Tasks run in the main loop (solo): their beats prove the loop's life.
            publishes: The progress of tasks is published.
            withdraw_plain: Prevents the start of a plain message's task; False: it has begun.
            key_of: Returns the exclusive key of a message, by its task's id and policy and the
                accepted content types.
            on_claimed: Called with each new lease, by the main thread.
            on_end: Called with a lease's tag before the main process itself stores a task's
                outcome.
            hurry: Called when running tasks have no time left; safe in a signal handler.
        """
        super().__init__(board, clock, worker_id)
        self.driver = driver
        self.accept, self.dead_letter_queue_of = accept, dead_letter_queue_of
        self.loop_is_task, self.publishes = loop_is_task, publishes
        self.withdraw_plain, self.hurry = withdraw_plain, hurry
        self.on_claimed, self.on_end = on_claimed, on_end
        self.loop_seen = clock.now()  #: when the main loop last turned; main thread writes
        self.loop_alive = self.keeper_seen = self.loop_seen  #: for probes; the keeper writes both
        self._policies, self._key_of, self._is_plain = policies, key_of, is_plain
        self._grants = granting.Grants(board)  # under the lock
        self.renewing: set[str] = set()  #: tags whose extension is under way; under the lock
        self.intake = Intake()  #: whether messages are taken and tasks are started
        self.outbox = Outbox(clock)  #: calls that the broker has not answered yet
        self._homeless = 0  # messages of a failed claim that are not back in their queue yet

    # Called by a channel (Holder).

    def terms(self, message: Any) -> Terms | None:
        """Return the terms for a leased task's message; None for every other message."""
        name, task_id, options = compat.task_of(message, self.accept)
        policy = self._policies(name, options) if name else None
        if policy is None:
            return None
        message.lease_task, message.lease_policy = (name, task_id), policy
        message.lease_exclusive = message.lease_fault = None
        try:
            message.lease_exclusive = self._key_of(message, task_id, policy, self.accept)
        except LeaseConfigError as exc:
            message.lease_fault = exc
        return Terms(
            seconds=policy.extension,
            longest=0.0 if math.isinf(policy.max_duration) else policy.max_duration,
            waits=True,
            about={"task": name, "id": task_id, "worker": self.worker_id},
            exclusive=message.lease_exclusive,
        )

    def plain_task(self, message: Any) -> str:
        name, _, _ = compat.task_of(message, self.accept)
        return name if self._is_plain(name) else ""

    def claimed(self, claim: Claim, message: Any) -> None:
        (name, task_id), policy = message.lease_task, message.lease_policy
        with self.lock:
            lease = Lease(claim, policy, task_id=task_id, name=name, on_change=self.stats.changed)
            if self.stats.trail is not None:
                self.stats.trail.granted(lease, message.headers)
            entry = LeaseEntry(lease, worker=self.worker_id, exclusive=message.lease_exclusive)
            self._put(entry)
        message.lease = LeaseHandle(self, claim.tag, claim.token, entry, message.lease_fault)
        self.on_claimed(lease)

    def parked(self, message: Any, queue: str, by: str) -> None:
        """Count a message that waits at the broker, which this worker does not hold."""
        (name, task_id), key = message.lease_task, message.lease_exclusive.key
        with self.lock:
            self.stats.parked(name, task_id, queue, key, by)
        log_messages.parked(name, task_id, key, by)

    def complete(self, tag: str, ending: Ending = Ending.COMPLETED) -> None:
        """Acknowledge a message; a former holder's acknowledgement changes nothing."""
        if self._take(tag, State.COMPLETED, ending) is not None:
            self.driver.ended([tag])
            self.outbox.send(self.driver.complete, [tag])

    def complete_first(self, tag: str) -> bool:
        """Acknowledge a message before its task starts, as it is to run once at most.

        Its lease ends here. Not by :attr:`outbox`: the task waits for the answer.

        Returns:
            Whether the task may start. If not, the message is somebody else's or, where the broker
            did not answer, goes back as soon as it does.
        """
        if self._is_unasked(tag):
            self.requeue([tag], ending=Ending.HANDED_BACK)
            return False
        with self.lock:
            entry = self._entries.get(tag)
            if entry is None or not self.intake.is_open or self._is_over(entry):
                return False
            slot, entry.slot = entry.slot, None  # its process waits for the answer
            self._take(tag, State.COMPLETED, Ending.COMPLETED)
        self.driver.ended([tag])
        # Once something was not answered, no more is asked: each question would wait as long.
        answer = Answer.UNKNOWN if self.outbox.left else self._completed(entry)
        if answer is Answer.UNKNOWN:
            log_messages.unanswered_start(entry)
            self.outbox.later(partial(self.driver.requeue, orderly=True, front=True), [tag])
        if slot is not None:
            with self.lock:
                if answer is Answer.HELD:
                    self._grants.grant(slot, self.clock.now())
                else:
                    granting.refuse(self.board, slot)
        return answer is Answer.HELD

    def _is_unasked(self, tag: str) -> bool:
        """Whether the process of a task that could be acknowledged does not ask for its start."""
        with self.lock:
            entry = self._entries.get(tag)
            slot = entry.slot if entry is not None and self.intake.is_open else None
        return slot is not None and not granting.is_asked(self.board, slot)

    def _completed(self, entry: LeaseEntry) -> Answer:
        """Acknowledge a message whose lease left the table, with a second try."""
        tag, deadline = entry.lease.claim.tag, entry.lease.deadline
        (answer,) = self.driver.complete([tag])
        if answer is not Answer.UNKNOWN:
            return answer
        (again,) = self.driver.complete([tag])
        # Nobody else can have taken it before the deadline: the first one was heard.
        heard = again is Answer.LOST and self.clock.now() < deadline
        return Answer.HELD if heard else again

    def requeue(
        self,
        tags: Sequence[str],
        *,
        front: bool = True,
        orderly: bool = True,
        ending: Ending = Ending.HANDED_OVER,
    ) -> None:
        """Return messages to their queues; an orderly return is not counted as a loss.

        Nor is the return of a message whose task has not begun.
        """
        lost: dict[str, LeaseEntry] = {}
        safe: list[str] = []
        with self.lock:
            for tag in tags:
                entry = self._take(tag, State.RELEASED, ending)
                if entry is not None and entry.begun and not orderly:
                    lost[tag] = entry
                elif entry is not None:
                    safe.append(tag)
            self.driver.ended(safe)
        why = next(iter(lost.values())).why if len(lost) == 1 else None
        known: dict[str, Any] = {"why": why} if why else {}
        requeue = partial(self.driver.requeue, front=front)
        self._send_returns(partial(requeue, orderly=False, **known), [*lost])
        self._send_returns(partial(requeue, orderly=True), safe)

    def _send_returns(self, call: Callable[[list[str]], list[Answer]], tags: list[str]) -> None:
        with self.lock:
            later = [tag for tag in tags if tag in self.renewing]
            if later:
                # The extension under way could reach the broker last, and hide the message again.
                self.outbox.later(call, later)
        self.outbox.send(call, [tag for tag in tags if tag not in later])

    def outran(self, message: Any, held: float, queue: str, timeout: float) -> bool:
        """Log a plain task that RabbitMQ stops waiting for; prevent its start if that can be."""
        name, task_id, _ = compat.task_of(message)
        begun = not self.withdraw_plain(message)
        log_messages.outran(f"{name}[{task_id}]", held, queue, timeout, begun=begun)
        return begun

    def unclaimed(self, delivery: Any) -> None:
        """Return a message whose claim was not confirmed; the keeper repeats that if unanswered."""
        with self.lock:
            self._homeless += 1
        self.outbox.later(self._return_unclaimed, [delivery])

    @property
    def backlogged(self) -> bool:
        """Whether to take no more messages: a drain, a stop, a full board, or a failed return."""
        return self._homeless > 0 or not self.intake.is_open or self.board.is_full

    def _return_unclaimed(self, deliveries: list[Any]) -> list[Answer]:
        answers = self.driver.return_unclaimed(deliveries)
        if Answer.UNKNOWN not in answers:
            with self.lock:
                self._homeless -= 1
        return answers

    def drop(self, tag: str) -> None:
        """End a message without another run of its task.

        Where the broker's queue has a delivery limit, the message goes back instead: the queue
        dead-letters it when its deliveries are used up, as after a plain reject.
        """
        with self.lock:
            entry = self._entries.get(tag)
        if entry is not None and entry.lease.claim.delivery_limit is not None:
            self.requeue([tag], front=False, orderly=False)
        elif self.driver.capabilities.drops:
            if self._take(tag, State.COMPLETED, Ending.COMPLETED) is not None:
                self.driver.ended([tag])
                self.outbox.send(self.driver.drop, [tag])
        else:
            self.complete(tag)

    def lost(self, tags: Sequence[str]) -> None:
        """Mark leases as lost whose messages have other holders, and flag their tasks."""
        with self.lock:
            entries = [
                entry for tag in tags if (entry := self._entries.get(tag)) and entry.lease.is_held
            ]
            for entry in entries:
                entry.lease.lose(LossReason.SUPERSEDED)
                if entry.slot is not None:
                    self.board.flag(entry.slot, FLAGS_ENDED)
            running = [entry for entry in entries if self._has_started(entry)]
        for entry in running:
            log_messages.lost(entry)

    # Called by a request.

    def start(self, tag: str) -> dict[str, Any] | None:
        """Prepare the run of a task; return its ticket, or None if the lease is gone.

        Raises:
            BoardFull: Too many tasks are in this worker's pool; the message has to go back.
            TooManyDeliveries: The message was lost too often: dead-letter it, do not run it.
        """
        with self.lock:
            entry = self._entries.get(tag)
            if entry is None or not self.intake.is_open or self._is_over(entry):
                return None
            poison.refuse(entry.lease, self.dead_letter_queue_of)
            if entry.slot is None:
                entry.slot = self.board.lend(entry.lease.deadline)
                self._lent[tag] = entry
                self.reserved.remove(entry)
            return ticket(self, entry.lease, entry.slot)

    def take_key(self, tag: str, *, settles: bool = False) -> KeyAnswer:
        """Take the exclusive key of a task that is about to start, if it needs one.

        A lease that is parked has left this worker by then.

        Args:
            tag: The lease's tag.
            settles: In the same call, complete the messages of tasks that are over by what their
                processes wrote, as the pool is about to report.
        """
        with self.lock:
            entry = self._entries.get(tag)
            if entry is None or entry.exclusive is None or entry.holds_key:
                return KeyAnswer(Verdict.HELD)
            turned_away = entry.lease.claim.turned_away
            entry.takes_key = turned_away is None
            done = self._take_done() if settles and turned_away is None else []
        answer = turned_away
        if answer is None:
            self.driver.ended(done)
            answer, said = self.driver.take_key_and_complete(tag, done)
            self.outbox.answered(self.driver.complete, done, said)
        with self.lock:
            entry.takes_key = False
            if answer.verdict is Verdict.HELD:
                entry.holds_key = entry.begin_sent = True
                self.stats.waited(entry.lease)
            elif answer.verdict is Verdict.PARKED:
                self._take(tag, State.RELEASED, Ending.PARKED)
                queue, key = entry.lease.claim.queue, entry.exclusive.key
                self.stats.parked(*entry.task, queue, key, answer.by)
        if answer.verdict is Verdict.PARKED:
            log_messages.parked(*entry.task, entry.exclusive.key, answer.by)
        return answer

    def _take_done(self) -> list[str]:
        """Remove the leases whose messages are to be completed; none if the broker was silent."""
        lent = () if self.outbox.left else tuple(self._lent.items())  # a signal may end some
        done = []
        for tag, entry in lent:
            if entry.outcome(self.board) is Outcome.DONE and self._take(
                tag, State.COMPLETED, Ending.COMPLETED
            ):
                done.append(tag)
        return done

    def requested(self, tag: str, request: Request) -> None:
        """Store Celery's request for a message; the publication of progress needs it."""
        with self.lock:
            entry = self._entries.get(tag)
            if entry is not None:
                entry.request = request

    def accepted(self, tag: str, pid: int | None) -> None:
        """Store the number of the process that runs a task, and start the lease.

        The start that the task itself wrote has precedence: the pool may report it long after, and
        a start that is dated too late would extend the lease for nothing.
        """
        with self.lock:
            entry = self._entries.get(tag)
            if entry is not None:
                entry.pid = pid
                entry.lease.start(self.started_at(entry) or self.clock.now())
        if entry is not None and not entry.begun:
            beginnings.note(self, entry)

    def discard(self, tag: str) -> None:
        """End a lease whose task has no outcome, and return its message, if it is still held here.

        A task that learned of its loss by itself, or from the broker, may end before the keeper's
        next look. A task that was refused because the worker stops is no loss.
        """
        with self.lock:
            entry = self._entries.get(tag)
            unseen = entry is not None and entry.lease.expire(self.clock.now())
            if entry is not None and entry.outcome(self.board) is Outcome.DISCARDED:
                unseen = unseen or entry.lease.is_held
                entry.lease.lose(LossReason.SUPERSEDED)
            lost = entry is None or not entry.lease.is_held or self.intake.is_open
        if entry is not None and unseen:
            log_messages.lost(entry, log_messages.THROWN_AWAY, stood=self.stood_still(entry))
        if entry is not None and lost:
            self.note_loss(entry, str(entry.lease.lost or "its outcome was discarded"))
        ending = Ending.LOST if lost else Ending.HANDED_BACK
        self.requeue([tag], orderly=not lost, ending=ending)

    def dead_letter(self, tag: str, queue: str) -> Answer:
        """Move a message to a dead-letter queue; its lease ends here with any answer."""
        entry = self._take(tag, State.COMPLETED, Ending.DEAD_LETTERED)
        if entry is None:
            return Answer.LOST
        name, task_id = entry.task
        about = {"task": name, "id": storable(task_id)}
        answer = self.driver.dead_letter(tag, queue, about)
        if answer is Answer.UNKNOWN:
            answer = self.driver.dead_letter(tag, queue, about)
        if answer is Answer.HELD:
            self.driver.ended([tag])
        return answer

    def dead_letter_malformed(self, tag: str) -> str | None:
        """Move a malformed message to a dead-letter queue; return its name, or None if it failed.

        If the broker did not answer, the message comes back when its lease expires.
        """
        with self.lock:
            entry = self._entries.get(tag)
        if entry is None or self.dead_letter_queue_of is None:
            return None
        queue = self.dead_letter_queue_of(entry.lease.claim.queue)
        return queue if self.dead_letter(tag, queue) is Answer.HELD else None

    def process_ended(self, tag: str, cause: object) -> None:
        """Store the cause of a process's end under its task; log it, unless it was a time limit."""
        with self.lock:
            entry = self._entries.get(tag)
        if entry is not None:
            entry.begun = True
            died_of = loss.cause_of_death(cause)
            stack = crashes.stack_of(entry.pid, died_of)
            self.note_loss(entry, died_of, stack)
            if not isinstance(cause, TimeLimitExceeded):
                log_messages.process_gone(entry, loss.in_words(entry.why), stack)

    def note_loss(self, entry: LeaseEntry, cause: str, stack: str = "") -> None:
        """Store the first known facts of a loss, before the message goes back."""
        with self.lock:
            # Once the lease has left the registry, its record is another's.
            if not entry.why and entry.lease.claim.tag in self._entries:
                entry.why = loss.facts(self.board, entry, cause, stack)

    def is_storing(self, tag: str) -> bool:
        """Whether a task has left its body, and its outcome is being stored."""
        with self.lock:
            entry = self._entries.get(tag)
        return entry is not None and spans.current(self.board, entry.slot).stores

    def end_soon(self, tag: str, *, storing: bool) -> None:
        """Schedule the return of a message whose task is being ended. For signal handlers.

        Args:
            tag: The lease's tag.
            storing: Whether its outcome was being stored before it was ended, by
                :meth:`is_storing`.
        """
        with self.lock:
            entry = self._entries.get(tag)
            if entry is None:
                return
            if storing:
                self._not_stored(entry)
                self.outbox.later(_log_not_stored, [entry])
            self._take(tag, State.RELEASED, Ending.LOST if storing else Ending.ENDED)
            known: dict[str, Any] = {"why": entry.why} if storing else {}
            back = partial(self.driver.requeue, orderly=not storing, front=True, **known)
            self.outbox.later(back, [tag])

    # Called by the keeper and the bootsteps.

    def requeue_unstarted(self, *, flushed: bool = False) -> None:
        """Requeue all messages whose task does not run yet.

        This includes those in the pool's queue, where they would only wait for running tasks. If a
        process takes one after all, its record keeps it from starting.

        Args:
            flushed: Celery reconnects and has made its pool forget every task without an
                acceptance, even if a process runs it by now.
        """
        with self.lock:
            waiting = [
                tag
                for tag, entry in self._entries.items()
                if entry.pid is None and (self._withdraw(entry) or flushed)
            ]
        # Newest first, so that the oldest ends up at the front of the line.
        self.requeue(waiting[::-1], ending=Ending.HANDED_BACK)

    def settle_outcomes(self) -> None:
        """Settle the messages of tasks whose processes wrote an outcome, without the pool's report.

        The main loop, which gets that report, stands still while a worker stops.
        """
        for entry in self.running():
            self.settle_outcome(entry)

    def settle_outcome(self, entry: LeaseEntry) -> bool:
        """Settle one message by the outcome that its process wrote; False: it wrote none."""
        tag, outcome = entry.lease.claim.tag, entry.outcome(self.board)
        if outcome is Outcome.DONE:
            self.complete(tag)
        elif outcome is Outcome.HANDED_OVER:
            self.requeue([tag])
        elif outcome is Outcome.DISCARDED:
            self.discard(tag)
        elif outcome is Outcome.REJECTED:
            self.drop(tag)
        elif outcome is Outcome.NOT_STORED:
            self.not_stored(tag)
        return outcome is not Outcome.UNREPORTED

    def not_stored(self, tag: str) -> None:
        """Return a message whose task has ended without a stored outcome, as a loss."""
        with self.lock:
            entry = self._entries.get(tag)
            news = entry is not None and entry.lease.is_held
            if entry is not None:
                self._not_stored(entry)
        if entry is not None and news:
            log_messages.lost(entry, log_messages.RUN_AGAIN)
        self.requeue([tag], orderly=False, ending=Ending.LOST)

    def _not_stored(self, entry: LeaseEntry) -> None:
        entry.lease.lose(LossReason.RESULT_NOT_STORED)
        self.note_loss(entry, str(entry.lease.lost))

    def close(self) -> None:
        """Free memory and connections.

        Leases that are still held stay unchanged at the broker, and expire; so do leases that have
        ended without the broker's answer.
        """
        log_messages.unsettled(self.outbox.left)
        with self.lock:
            left = [entry for entry in self._entries.values() if entry.lease.is_held]
        log_messages.left_behind(left)
        fork_safety.forget(self.lock)
        self.board.close()
        self.driver.close()


def _log_not_stored(entries: list[LeaseEntry]) -> list[Answer]:
    """Log a loss that happened in a signal handler, outside of it."""
    for entry in entries:
        log_messages.lost(entry, log_messages.RUN_AGAIN)
    return [Answer.HELD] * len(entries)
