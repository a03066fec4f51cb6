"""Dead letters on RabbitMQ: messages in a queue of their own, with a header of what became of them.

For queues that are not declared with a dead-letter exchange; one that is gets its messages as it
does without leases. RabbitMQ moves nothing for others, so a letter is a copy whose arrival RabbitMQ
has confirmed before the message is acknowledged: if that is not answered it may be there twice,
but never not at all.

The queue is made when it is first needed, as a durable classic one. One that is there already is
taken as it is.

All this is rare, so it has a connection of its own each time: the worker's is read by one thread.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from amqp.basic_message import Message
from amqp.exceptions import AMQPError, NotFound

from celery_lease.brokers.amqp.counts import HEADER
from celery_lease.core.dead import DeadLetter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

#: The header of a letter that says where it came from, since when it is dead, and its losses.
DEAD = "celery_lease_dead"
#: Longest wait for a connection, and for the answer to one call, in seconds.
PATIENCE = 4.0
#: What is not kept of a message: a letter does not expire, and its deliveries start anew.
_DROPPED = ("expiration", "application_headers")


def copy(connection: Any, raw: Any, queue: str, told: Mapping[str, Any]) -> None:
    """Publish a copy of a message to a dead-letter *queue*, which is made if there is none.

    Raises:
        AMQPError, OSError: It was not confirmed; the copy may or may not be there.
    """
    if _length(connection, queue) is None:
        connection.channel().queue_declare(queue, durable=True, auto_delete=False)
    _publish(connection, raw, queue, {DEAD: dict(told)})


class AmqpDeadLetters:
    """The dead-letter queues of one broker; implements :class:`~.core.dead.DeadLetters`.

    What is looked at stays with its channel until :meth:`close`.
    """

    def __init__(self, dial: Callable[[], Any]) -> None:
        self._dial = dial
        self._connection: Any = None
        self._taken: dict[bytes, tuple[Any, Any]] = {}  # channel and message, by a letter's text

    def queues(self, likely: Sequence[str]) -> list[str]:
        """Return those of the *likely* queues that hold something; AMQP cannot list any."""
        return [queue for queue in likely if _length(self._connected(), queue)]

    def letters(self, queue: str) -> Iterator[DeadLetter]:
        """Yield what lies in a *queue*, the oldest first; what is no dead letter is passed over."""
        connection = self._connected()
        if not _length(connection, queue):
            return
        channel = connection.channel()
        while (raw := channel.basic_get(queue, no_ack=False)) is not None:
            name = f"{len(self._taken)}".encode()
            if letter := _letter(queue, raw, name):
                self._taken[name] = channel, raw
                yield letter

    def retry(self, letter: DeadLetter) -> bool:
        """Send a letter back to the queue it came from; False: it is not there any more."""
        if letter.text not in self._taken:
            return False
        _publish(self._connected(), self._taken[letter.text][1], letter.origin, {})
        return self.purge(letter)

    def purge(self, letter: DeadLetter) -> bool:
        """Throw a letter away; False: it is not there any more."""
        channel, raw = self._taken.pop(letter.text, (None, None))
        if channel is not None:
            channel.basic_ack(raw.delivery_info["delivery_tag"])
        return channel is not None

    def close(self) -> None:
        """Return to their queues what was looked at and is still there."""
        self._taken.clear()
        if self._connection is not None:
            connection, self._connection = self._connection, None
            with suppress(AMQPError, OSError):
                connection.release()

    def _connected(self) -> Any:
        if self._connection is None:
            self._connection = self._dial()
        return self._connection


def _length(connection: Any, queue: str) -> int | None:
    """Return how many messages wait in a queue; None if there is no such queue."""
    channel = connection.channel()
    try:
        return int(channel.queue_declare(queue, passive=True).message_count)
    except NotFound:
        return None
    finally:
        channel.close()


def _publish(connection: Any, raw: Any, queue: str, told: Mapping[str, Any]) -> None:
    """Publish a copy of a message, and wait until RabbitMQ has it.

    Raises:
        AMQPError, OSError: It was not confirmed, or there is no such queue.
    """
    properties = {key: each for key, each in raw.properties.items() if key not in _DROPPED}
    headers = raw.properties.get("application_headers") or {}
    kept = {key: each for key, each in headers.items() if key not in (DEAD, HEADER)}
    message = Message(raw.body, application_headers={**kept, **told}, **properties)
    channel = connection.channel()
    channel.basic_publish_confirm(
        message, exchange="", routing_key=queue, mandatory=True, timeout=PATIENCE
    )
    channel.close()


def _letter(queue: str, raw: Any, name: bytes) -> DeadLetter | None:
    """Read a message; None for one that something else put into the queue."""
    headers = raw.properties.get("application_headers") or {}
    told = headers.get(DEAD)
    if not isinstance(told, dict):
        return None
    body = raw.body
    return DeadLetter(
        task_id=str(headers.get("id") or ""),
        task=str(headers.get("task") or ""),
        queue=queue,
        origin=told["queue"],
        died_at=told["at"],
        losses=told["losses"],
        headers={key: each for key, each in headers.items() if key != DEAD},
        body=body if isinstance(body, str) else body.decode(errors="replace"),
        text=name,
    )
