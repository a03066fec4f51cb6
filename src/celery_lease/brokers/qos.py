"""The common part of kombu's virtual transports with leases: how leased messages are settled.

Channels and their ``QoS`` are of classes that can lease (:class:`VirtualDriver`). They behave as
kombu's own until a channel begins to lease, as that of the worker's consumer does.

A ``QoS`` keeps unacknowledged messages, by tag. Calls for leased messages go to a
:class:`~celery_lease.core.delivery.Holder`, which decides; all others take kombu's own path.

A transport that reads several messages at once also holds them at once (:class:`HoldingQoS`): their
delivery, one after the other, may wait for a free slot or for a whole task.

Uses of kombu internals, as read in 5.5.4 and 5.7.0: ``QoS._delivered``, ``QoS._quick_ack`` and
``QoS._on_collect``; and that a message object is created again, from the same payload, when it is
delivered. Of Celery's, as read in 5.7.0: that it sets a ``can_consume`` of its own on the object,
which calls the former one.
"""

from __future__ import annotations

from functools import cache
from multiprocessing.util import Finalize
from typing import TYPE_CHECKING, Any, ClassVar

from celery_lease.core.driver import Driver

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_lease.core.clock import Clock
    from celery_lease.core.delivery import Claim, Holder


class Nobody:
    """The holder of a channel that does not lease."""

    backlogged = False

    def terms(self, message: Any) -> None:
        """Return None: no message gets a lease."""


NOBODY: Any = Nobody()


class SettlingQoS:
    """Passes acks and rejects of leased messages to their holder; mixed into a ``QoS``.

    Touched by the consuming thread; :meth:`ack` and :meth:`reject` by any thread that settles a
    message.
    """

    holder: Holder = NOBODY
    driver: Any
    clock: Clock
    leased: set[str]  # tags of this channel's leased messages; a set operation is atomic

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.leased = set()

    @property
    def lease_holder(self) -> Holder:
        """The holder, under the name that a channel has for it."""
        return self.holder

    @property
    def can_consume(self: Any) -> Callable[[], bool]:
        """Return a function that returns whether another message may be taken."""
        # A property takes precedence over the object's attribute, which Celery may set at any time.
        window = self.__dict__.get("can_consume") or super().can_consume  # type: ignore[misc]
        return lambda: self.may_take(window)

    @can_consume.setter
    def can_consume(self: Any, wrapper: Callable[[], bool]) -> None:
        self.__dict__["can_consume"] = wrapper

    def may_take(self: Any, window: Callable[[], bool]) -> bool:
        """Return whether another message may be taken; *window* is kombu's and Celery's answer."""
        return not self.holder.backlogged and bool(window())

    def ack(self: Any, delivery_tag: str) -> None:
        """Acknowledge a message and free its place in the prefetch window."""
        if self._release(delivery_tag):
            self.holder.complete(delivery_tag)
        else:
            super().ack(delivery_tag)  # type: ignore[misc]

    def reject(self: Any, delivery_tag: str, requeue: bool = False) -> None:
        if not self._release(delivery_tag):
            super().reject(delivery_tag, requeue=requeue)  # type: ignore[misc]
        elif requeue:
            self.holder.requeue([delivery_tag], front=False)
        else:
            self.holder.complete(delivery_tag)

    def restore_unacked_once(self: Any, stderr: Any = None) -> None:
        """Return messages that no task will work on, before kombu restores the others."""
        self.return_idle()
        super().restore_unacked_once(stderr)  # type: ignore[misc]

    def return_idle(self: Any) -> None:
        """Return leased messages that no task will work on; the channel is being closed.

        Kombu may not restore leased messages, returned or kept. They stay in :attr:`leased`: a
        later settlement goes to the holder, and not to a channel without a connection, whose error
        would end the worker.
        """
        leased = [tag for tag in self._delivered if tag in self.leased]
        for tag in leased:
            self._delivered.pop(tag, None)
        leased += self.undelivered()
        ended = [tag for tag in leased if not self.holder.keeps(tag)]
        if ended:  # newest first, so that the oldest ends up in front
            self.holder.requeue(ended[::-1], front=True)

    def undelivered(self) -> list[str]:
        return []

    def _release(self: Any, delivery_tag: str) -> bool:
        """Free the place of a leased message; False if it is not one of this channel's."""
        if delivery_tag not in self.leased:
            return False
        self.leased.discard(delivery_tag)
        self._quick_ack(delivery_tag)
        return True


class HoldingQoS(SettlingQoS):
    """Holds leased messages from the moment they were read; mixed into a ``QoS``.

    For the consuming thread. In workers without an event loop the delivery of a message may wait
    for a free slot of the pool, and a solo pool runs its task at once: the worker must hold, and be
    able to return, the other messages of the same read meanwhile.
    """

    held: dict[Any, Any]  # messages to be delivered, as claimed, by name

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.held = {}

    @staticmethod
    def name_of(message: Any) -> Any:
        """Return a name of a message that all of its objects share."""
        return message.delivery_tag

    def hold(self, claim: Claim, message: Any) -> None:
        """Give a message that was read to the holder, until it is delivered."""
        message.delivery_tag = claim.tag
        self.leased.add(claim.tag)
        self.holder.claimed(claim, message)
        self.held[self.name_of(message)] = message

    def append(self: Any, message: Any, delivery_tag: str) -> None:
        """Record a delivery, under the tag of its lease if it has one.

        Kombu has created another object for the message, which takes over the holder's attributes.
        """
        known = self.held.pop(self.name_of(message), None)
        if known is not None:
            vars(message).update(vars(known))
            message.delivery_tag = delivery_tag = known.delivery_tag  # not of the former object
        super().append(message, delivery_tag)  # type: ignore[misc]

    def undelivered(self) -> list[str]:
        tags = [message.delivery_tag for message in self.held.values()]
        self.held.clear()
        return tags


class LeasingChannel:
    """Mixed into a ``Channel``; its methods are kombu's own until the channel begins to lease."""

    QoS: Any
    lease_driver: Any
    lease_holder: Holder = NOBODY
    lease_clock: Clock

    def begin_leases(self: Any, driver: Driver, holder: Holder, clock: Clock) -> None:
        """Lease the messages that *holder* has terms for. Call it before anything is consumed."""
        self.lease_driver, self.lease_clock = driver, clock
        qos = self.qos
        qos.driver, qos.clock = driver, clock
        qos.holder = self.lease_holder = holder


class SettlingChannel(LeasingChannel):
    """Settles through its ``QoS``; for channels that call their broker themselves."""

    def basic_ack(self: Any, delivery_tag: str, multiple: bool = False) -> None:
        """Acknowledge a message: a leased one through its holder, others as kombu does."""
        if delivery_tag in self.qos.leased:
            self.qos.ack(delivery_tag)
        else:
            super().basic_ack(delivery_tag, multiple)  # type: ignore[misc]

    def basic_reject(self: Any, delivery_tag: str, requeue: bool = False) -> None:
        """Reject a message: a leased one through its holder, others as kombu does."""
        if delivery_tag in self.qos.leased:
            self.qos.reject(delivery_tag, requeue=requeue)
        else:
            super().basic_reject(delivery_tag, requeue=requeue)  # type: ignore[misc]


def when_leasing(method: Callable[..., Any]) -> Any:
    """Decorate a method of a channel or ``QoS``: kombu's own is used until leasing begins."""
    return _WhenLeasing(method)


class _WhenLeasing:
    def __init__(self, method: Callable[..., Any]) -> None:
        self._method = method
        self.__doc__ = method.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._owner, self._name = owner, name

    def __get__(self, channel: Any, owner: type | None = None) -> Any:
        if channel is None:
            return self
        if channel.lease_holder is NOBODY:
            return getattr(super(self._owner, channel), self._name)
        return self._method.__get__(channel)


class VirtualDriver(Driver):
    """A driver for one of kombu's virtual transports."""

    channel_class: ClassVar[type[LeasingChannel]] = LeasingChannel

    @classmethod
    def transport_class(cls, kombus: Any) -> Any:
        return changed(kombus, "Channel", mixed(cls.channel_class, kombus.Channel))

    def lease_messages(self, channel: Any, holder: Holder, clock: Clock) -> None:
        if not isinstance(channel, LeasingChannel):
            _convert(channel, self.channel_class)
        channel.begin_leases(self, holder, clock)


def _convert(channel: Any, leasing: type[LeasingChannel]) -> None:
    """Convert a live channel of another program's connection, and its ``QoS``, in place.

    This includes the finalizer of the ``QoS``, called when it is collected, or when the process
    ends with an open channel: kombu has bound its own method to it.
    """
    qos = channel.qos
    channel.__class__ = mixed(leasing, type(channel))
    qos.__class__ = channel.QoS
    qos.leased, qos.held = set(), {}
    qos._on_collect.cancel()  # noqa: SLF001
    qos._on_collect = Finalize(qos, qos.restore_unacked_once, exitpriority=1)  # noqa: SLF001


def mixed(leasing: Any, channel_class: Any) -> Any:
    """Return a channel class that can lease."""
    return _made("LeasingChannel", (leasing, channel_class))


def changed(base: Any, name: str, value: Any) -> Any:
    """Return a subclass of a class with another value for one attribute."""
    return _made(base.__name__, (base,), (name, value))


@cache
def _made(name: str, bases: tuple[Any, ...], *attributes: tuple[str, Any]) -> Any:
    return type(name, bases, dict(attributes))
