"""What kombu's virtual transports have in common when a leased message is settled.

Their ``QoS`` keeps what is unacknowledged, by tag. Those of leased messages, and what is asked of
them, go to a :class:`~celery_lease.core.delivery.Holder`, which decides; all others take kombu's
own path, untouched.

Uses of kombu internals, as read in 5.5.4 and 5.7.0: ``QoS._delivered`` and ``QoS._quick_ack``.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from celery_lease.core.delivery import Holder


class SettlingQoS:
    """Routes acks and rejects of leased messages to their holder; mixed into a ``QoS``.

    Touched by the consuming thread, and in :meth:`ack` and :meth:`reject` by whichever thread
    settles a message.
    """

    holder: Holder
    leased: set[str]  # tags, this channel's; a set operation is atomic

    def ack(self: Any, delivery_tag: str) -> None:
        """Acknowledge a message and free its place in the prefetch window."""
        if self._release(delivery_tag):
            self.holder.complete(delivery_tag)
        else:
            super().ack(delivery_tag)  # type: ignore[misc]

    def reject(self: Any, delivery_tag: str, requeue: bool = False) -> None:
        """Drop a message, or return it as kombu does."""
        if not self._release(delivery_tag):
            super().reject(delivery_tag, requeue=requeue)  # type: ignore[misc]
        elif requeue:
            self.holder.hand_back([delivery_tag], front=False)
        else:
            self.holder.complete(delivery_tag)

    def return_idle(self: Any) -> None:
        """Return what nobody will work on any more; the channel is being closed.

        What is leased is kombu's to restore no longer, whether it goes back or is kept. It stays
        among the leased ones: who settles it after this asks the holder, and not a channel without
        a connection, whose error would end the worker.
        """
        leased = [tag for tag in self._delivered if tag in self.leased]
        for tag in leased:
            self._delivered.pop(tag, None)
        ended = [tag for tag in leased if not self.holder.keeps(tag)]
        # Newest first, so that the oldest ends up at the front of the line.
        self.holder.hand_back(ended[::-1], front=True)

    def _release(self: Any, delivery_tag: str) -> bool:
        """Free the place of a leased message; False if it is not one of this channel's."""
        if delivery_tag not in self.leased:
            return False
        self.leased.discard(delivery_tag)
        self._quick_ack(delivery_tag)
        return True


class SettlingChannel:
    """Asks the ``QoS`` first; for channels that ask their broker by themselves."""

    def basic_ack(self: Any, delivery_tag: str, multiple: bool = False) -> None:
        """Acknowledge; what is leased by way of its holder, the rest as kombu does."""
        if delivery_tag in self.qos.leased:
            self.qos.ack(delivery_tag)
        else:
            super().basic_ack(delivery_tag, multiple)  # type: ignore[misc]

    def basic_reject(self: Any, delivery_tag: str, requeue: bool = False) -> None:
        """Reject; what is leased by way of its holder, the rest as kombu does."""
        if delivery_tag in self.qos.leased:
            self.qos.reject(delivery_tag, requeue=requeue)
        else:
            super().basic_reject(delivery_tag, requeue=requeue)  # type: ignore[misc]


def mix_in(leasing: type, channel: Any) -> None:
    """Put a class before that of a live *channel*, which stays the same object."""
    channel.__class__ = _mixed(leasing, type(channel))  # type: ignore[arg-type]


@cache
def _mixed(leasing: type, channel_class: type) -> type:
    return type("LeasingChannel", (leasing, channel_class), {})
