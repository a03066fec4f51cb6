"""Dead letters on RabbitMQ: copies in a queue of their own, with a header for their history.

For queues that are declared without a dead-letter exchange; others get their messages as without
leases. RabbitMQ cannot move a message, so a dead letter is a copy that RabbitMQ has confirmed
before the message is acknowledged: without an answer there may be two, but there is never none.

The queue is declared when it is first needed, as a durable classic queue. An existing one is used
unchanged.

This is rare, so each call has a connection of its own: one thread alone reads the worker's.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from amqp.basic_message import Message
from amqp.exceptions import AMQPError, NotFound
from amqp.serialization import dumps

from celery_lease.brokers.amqp.counts import HEADER
from celery_lease.core.dead import DeadLetter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

#: Header of a dead letter: its origin, the time of its move, and its losses.
DEAD = "celery_lease_dead"
#: Longest wait for a connection, and for the answer to one call, in seconds.
ANSWER_TIMEOUT = 4.0
#: Bytes of a frame reserved for a message's properties and for the fixed parts of a dead letter.
BESIDE = 4096
#: Properties that a copy leaves out: it does not expire, and its deliveries start again.
_DROPPED = ("expiration", "application_headers")
#: Headers of the message's earlier deliveries; RabbitMQ 4 counts acquisitions, too.
_COUNTS = (DEAD, HEADER, "x-acquired-count")


def copy(connection: Any, raw: Any, queue: str, facts: Mapping[str, Any]) -> None:
    """Publish a copy of a message to a dead-letter *queue*, which is declared if it is missing.

    Raises:
        AMQPError, OSError: RabbitMQ has not confirmed it; the copy may or may not be there.
    """
    if _length(connection, queue) is None:
        connection.channel().queue_declare(queue, durable=True, auto_delete=False)
    _publish(connection, raw, queue, {DEAD: dict(facts)})


def room(raw: Any, frame_max: int) -> int:
    """Return the bytes that are free for a history: all properties have to fit in one frame."""
    headers = raw.properties.get("application_headers") or {}
    return frame_max - BESIDE - len(dumps("F", (headers,)))


def send_again(connection: Any, raw: Any, queue: str) -> None:
    """Publish a copy of a message to its own queue, where its deliveries start again.

    Raises:
        AMQPError, OSError: RabbitMQ has not confirmed it; the copy may or may not be there.
    """
    _publish(connection, raw, queue, {}, dropped=("application_headers",))


class AmqpDeadLetters:
    """The dead-letter queues of one broker; implements :class:`~.core.dead.DeadLetters`.

    Letters that were read stay with their channel until :meth:`close`.
    """

    def __init__(self, dial: Callable[[], Any]) -> None:
        self._dial = dial
        self._connection: Any = None
        self._taken: dict[bytes, tuple[Any, Any]] = {}  # channel and message, by a letter's text

    def queues(self, likely: Sequence[str]) -> list[str]:
        """Return the *likely* queues that are not empty; AMQP cannot list queues."""
        return [queue for queue in likely if _length(self._connected(), queue)]

    def letters(self, queue: str) -> Iterator[DeadLetter]:
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
        if letter.text not in self._taken:
            return False
        _publish(self._connected(), self._taken[letter.text][1], letter.origin, {})
        return self.purge(letter)

    def purge(self, letter: DeadLetter) -> bool:
        channel, raw = self._taken.pop(letter.text, (None, None))
        if channel is not None:
            channel.basic_ack(raw.delivery_info["delivery_tag"])
        return channel is not None

    def close(self) -> None:
        """Return the letters that were read, and not replayed or discarded, to their queues."""
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
    """Return the number of messages in a queue; None if there is no such queue."""
    channel = connection.channel()
    try:
        return int(channel.queue_declare(queue, passive=True).message_count)
    except NotFound:
        return None
    finally:
        channel.close()


def _publish(
    connection: Any,
    raw: Any,
    queue: str,
    added: Mapping[str, Any],
    dropped: Sequence[str] = _DROPPED,
) -> None:
    """Publish a copy of a message, and wait for RabbitMQ's confirmation.

    Raises:
        AMQPError, OSError: RabbitMQ has not confirmed it, or there is no such queue.
    """
    properties = {key: each for key, each in raw.properties.items() if key not in dropped}
    headers = raw.properties.get("application_headers") or {}
    kept = {key: each for key, each in headers.items() if key not in _COUNTS}
    message = Message(raw.body, application_headers={**kept, **added}, **properties)
    channel = connection.channel()
    channel.basic_publish_confirm(
        message, exchange="", routing_key=queue, mandatory=True, timeout=ANSWER_TIMEOUT
    )
    channel.close()


def _letter(queue: str, raw: Any, name: bytes) -> DeadLetter | None:
    """Read a message; None if it is no dead letter of celery-lease."""
    headers = raw.properties.get("application_headers") or {}
    facts = headers.get(DEAD)
    if not isinstance(facts, dict):
        return None
    others = {key: each for key, each in headers.items() if key != DEAD}
    body = raw.body if isinstance(raw.body, str) else raw.body.decode(errors="replace")
    return DeadLetter.of(queue, facts, others, body=body, text=name)
