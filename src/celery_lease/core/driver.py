"""The base class of broker drivers.

A driver acts and translates, it never decides. The class describes its kind of broker; an instance
is connected to one broker. Drivers are found by the entry-point group ``celery_lease.brokers``;
docs/drivers.md explains how to write one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from celery_lease.core.delivery import Answer, Capabilities, Holder, Reaped, Renewal
from celery_lease.core.errors import UnsupportedOperation
from celery_lease.core.keys import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from celery_lease.core.clock import Clock
    from celery_lease.core.dead import DeadLetters
    from celery_lease.core.findings import Doctor
    from celery_lease.core.keys import KeyAnswer, KeyUse
    from celery_lease.core.records import Recorded, Records

#: Why remote control does not work where kombu has no fanout exchanges.
NO_BROADCASTS = "Celery's remote control needs broadcasts, which kombu does not have there"


class Driver(ABC):
    """Leases at one broker. Methods may be called from any thread and block for a bounded time.

    A method with a body here has a default for brokers without the feature. An operation that a
    broker does not support raises :exc:`~celery_lease.UnsupportedOperation`, and nothing else.
    """

    # Properties of the kind of broker.

    capabilities: ClassVar[Capabilities] = Capabilities(
        extends=False, fences=False, confirms=False, granularity=0.0
    )
    #: The broker's name for display; "": that of its transport.
    label: ClassVar[str] = ""
    #: The default of the transport option ``visibility_timeout``, in seconds; None: there is none.
    visibility_timeout: ClassVar[float | None] = None
    #: The effect of different timeouts among processes, the least ``{shortest}``; "": none.
    mixed_timeouts: ClassVar[str] = ""
    #: Why workers cannot be asked by remote control; "": they can.
    unaskable: ClassVar[str] = ""
    #: What is unknown about leases if their worker does not answer; "": the usual sentence.
    unrecorded: ClassVar[str] = ""
    #: The client's errors for a user, a password or a virtual host that the broker refuses.
    login_errors: ClassVar[tuple[type[BaseException], ...]] = ()
    #: How to look up a message, with ``{id}`` for its task's id; "": there is no way.
    lookup: ClassVar[str] = ""
    #: The effect of a wrong clock on a worker's host.
    skewed: ClassVar[str] = (
        "Leases are judged by the broker's clock alone. ETAs and expiry times of tasks are off, "
        "and so is the sweep of plain workers on that host."
    )

    @classmethod
    @abstractmethod
    def connect(cls, channel: Any, clock: Clock | None = None) -> Driver:
        """Return a new driver for the broker of a live kombu *channel*; *clock* None: the host's.

        Raises:
            UnsupportedBroker: The broker's configuration makes leases impossible.
        """

    @classmethod
    def unfit(cls, exc: BaseException) -> tuple[str, str] | None:
        """Return the reason and the remedy for an error that needs a change at the broker."""
        del exc
        return None

    @classmethod
    def refuses(cls, exc: BaseException | None) -> bool:
        """Whether an error, or its cause, is one of :attr:`login_errors`."""
        while exc is not None and not isinstance(exc, cls.login_errors):
            exc = exc.__cause__ or exc.__context__
        return exc is not None

    @classmethod
    def unfit_name(cls, connection: Any, queue: str) -> str:
        """Return why a queue's name is not allowed, or "". *connection* need not be open."""
        del connection, queue
        return ""

    @classmethod
    def lacking(cls, channel: Any, use: Any) -> tuple[str, str] | None:
        """Return the missing permissions of a *channel*'s user and a remedy; None: none are.

        *use* is a :class:`celery_lease.brokers.use.Use`.
        """
        del channel, use
        return None

    @classmethod
    def will_pass(cls, exc: BaseException) -> bool:
        """Whether an error is temporary, though the client library reports no lost connection."""
        del exc
        return False

    @classmethod
    def longest_poll(cls, connection: Any) -> float:
        """Return the seconds for which a stopping worker may wait for the end of its polls.

        *connection* is not opened.
        """
        del connection
        return 0.0

    @classmethod
    def bound(cls, connection: Any, seconds: float) -> None:
        """Limit the wait of a *connection*, not open yet, for an answer to *seconds*."""

    @classmethod
    def checkpoints(cls, channel: Any, expires: int) -> Any:
        """Return a store of checkpoints beside the messages, kept for *expires* seconds."""
        del channel, expires
        raise cls._unsupported("checkpoints")

    @classmethod
    def doctor(cls) -> Doctor | None:
        """Return the checks of this broker for ``celery lease doctor``, such as a module."""

    # Its hooks into a kombu channel.

    @classmethod
    def transport_class(cls, kombus: Any) -> Any:
        """Return a transport class whose channels can lease, or *kombus* itself."""
        return kombus

    @abstractmethod
    def lease_messages(self, channel: Any, holder: Holder, clock: Clock) -> None:
        """Make a live kombu *channel* lease the messages that *holder* has terms for."""

    def turn(self, channel: Any) -> None:
        """Start or stop deliveries to a *channel*, as its holder's backlog requires.

        Called in the consuming thread, about once a second. Needed for a broker that pushes
        messages. Here and in the following methods the channel may be closed.
        """

    def tend(self, channel: Any) -> None:
        """Do the consuming thread's urgent work while it stands still. Called in another thread.

        About twice a second. Needed for a broker that pushes messages.
        """

    @property
    def is_tended(self) -> bool:
        """Whether :meth:`tend` does something: the keeper does not rest then."""
        return type(self).tend is not Driver.tend

    def catch_up(self, channel: Any) -> None:
        """Handle the data that :meth:`tend` has read, where an event loop waits for the socket.

        Called in the consuming thread, where an error ends the loop.
        """

    def end_receiving(self, channel: Any) -> None:
        """Receive the messages that the broker may have sent already, after consuming has ended.

        Messages that still arrive go back to their queue. Needed for a channel that requests
        messages ahead of time.
        """

    # Leases.

    @abstractmethod
    def extend(self, renewals: Sequence[Renewal], *, timeout: float) -> list[Answer]:
        """Move expiries, in as few round trips as the broker allows. Never raises."""

    def serve(self, worker: str) -> None:
        """Store the identity of this driver's *worker*.

        Only a driver that reports expired leases of other workers needs it.
        """
        del worker

    def begin(self, tags: Sequence[str]) -> list[Answer]:
        """Record that the tasks of reserved messages begin. Never raises.

        From now on an expiry is a loss, where the broker keeps that. Elsewhere nothing is recorded.
        """
        return [Answer.HELD] * len(tags)

    def take_key(self, tag: str) -> KeyAnswer:
        """Take the key of a task that is about to start, never raising; where the driver has keys.

        Its beginning is noted with that.
        """
        del tag
        raise self._unsupported("take_key")

    def take_key_and_complete(
        self, tag: str, done: Sequence[str]
    ) -> tuple[KeyAnswer, list[Answer]]:
        """Take a key as :meth:`take_key`, then complete messages. Never raises.

        For a driver that can do both in one round trip. No more is asked after no answer.
        """
        answer = self.take_key(tag)
        if answer.verdict is Verdict.UNKNOWN:
            return answer, [Answer.UNKNOWN] * len(done)
        return answer, self.complete(done) if done else []

    def keys_in_use(self) -> Iterable[KeyUse]:
        """Return the keys that are held or waited for; where the driver has keys.

        Raises:
            Exception: What the client library raises.
        """
        raise self._unsupported("keys_in_use")

    def key_in_use(self, key: str) -> KeyUse | None:
        """Return who holds one key and who waits for it; None: nobody does.

        Raises:
            Exception: What the client library raises.
        """
        return next((use for use in self.keys_in_use() if use.key == key), None)

    def key_awaited_by(self, task_id: str) -> str:
        """Return the key for which a task's message waits; "": for none.

        Raises:
            Exception: What the client library raises.
        """
        uses = self.keys_in_use()
        found = (use.key for use in uses for user in use.parked if user.task_id == task_id)
        return next(found, "")

    def first_parked(self, most: int) -> Sequence[Recorded]:
        """Return the first messages of each key's line, at most *most* in all.

        They are not listed if a driver does not override this.

        Raises:
            Exception: What the client library raises.
        """
        del most
        return ()

    def parked(self) -> Mapping[str, int]:
        """Return how many messages of each queue wait for a key; where the driver has keys.

        Raises:
            OSError: The broker did not answer.
        """
        return {}

    def ended(self, tags: Sequence[str]) -> None:
        """Record that deliveries end in order, without a call to the broker. Never raises.

        The broker may get the call later, or not answer, and deliver a message again before. Only a
        driver that counts losses itself needs this.
        """
        del tags

    @abstractmethod
    def complete(self, tags: Sequence[str]) -> list[Answer]:
        """Acknowledge messages whose claim is still the caller's. Never raises."""

    def drop(self, tags: Sequence[str]) -> list[Answer]:
        """Drop messages; :meth:`complete` where the broker knows no difference. Never raises."""
        return self.complete(tags)

    @abstractmethod
    def requeue(
        self,
        tags: Sequence[str],
        *,
        orderly: bool,
        front: bool,
        why: Mapping[str, object] | None = None,
    ) -> list[Answer]:
        """Return messages to their queues; an orderly return does not count as a loss.

        Args:
            tags: The tags of the deliveries.
            orderly: It is no loss.
            front: Return them to the front of their queues, the last of *tags* first.
            why: The facts of the loss, stored where the broker keeps a history.
        """

    def return_unclaimed(self, deliveries: Sequence[Any]) -> list[Answer]:
        """Return messages that were popped from a queue but perhaps never claimed. Never raises.

        There are none where every claim succeeds, or where unclaimed messages come back by
        themselves.
        """
        return [Answer.HELD] * len(deliveries)

    def reap(self, *, limit: int) -> list[Reaped]:
        """Return up to *limit* expired leases to their queues, where the driver reaps.

        Messages that could not be returned are included, beyond the limit.

        Raises:
            OSError: The broker did not answer; the next sweep tries again.
        """
        del limit
        return []

    def overdue(self, *, limit: int) -> list[Reaped]:
        """Return the messages that :meth:`reap` would return, and change nothing.

        Raises:
            OSError: The broker did not answer.
        """
        del limit
        return []

    def dead_letter(self, tag: str, queue: str, about: Mapping[str, str] | None = None) -> Answer:
        """Move a held message to a dead-letter queue, where the driver does that. Never raises.

        *about* (``task`` and ``id``) is stored with the letter: not every message contains them.

        After :attr:`Answer.UNKNOWN` call it again to learn whether the message is there. At a
        broker that cannot move a message in one step there may be two, but there is never none.
        """
        del tag, queue, about
        raise self._unsupported("dead_letter")

    def dead_letters(self) -> DeadLetters:
        """Return the dead-letter queues, where the driver has them."""
        raise self._unsupported("dead_letters")

    def records(self) -> Records:
        """Return the broker's records of messages, where the driver has them."""
        raise self._unsupported("records")

    def close(self) -> None:
        """Close this driver's own connections."""

    @classmethod
    def _unsupported(cls, operation: str) -> UnsupportedOperation:
        return UnsupportedOperation(cls.__name__.removesuffix("Driver").lower(), operation)
