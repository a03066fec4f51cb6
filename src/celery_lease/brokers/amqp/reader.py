"""Reads a connection while the consuming thread stands still, and checks that the broker lives.

The consuming thread of a solo worker runs tasks, that of a green worker waits for a place in its
pool, that of a stopping worker for the pool's end. Meanwhile the keeper's thread reads RabbitMQ's
frames, **but handles none**: the consuming thread finds the frames, in their order, at its next
read. Three facts are used before that: that the broker lives, that it closed the channel, and which
messages arrived, so that they can be returned unseen.

A reader never takes frames that the consuming thread is about to read: only those unread at two
looks.

**A question** is ``channel.flow`` without a change, which RabbitMQ answers on each channel in its
turn: the channel is open, and its deliveries are still this channel's. Nothing else here sends it.

Uses of py-amqp internals, as read in 5.3.1 and 5.4.2: ``Connection.blocking_read``, which is
replaced, ``on_inbound_frame``, ``bytes_recv``, ``Transport.read_frame`` and ``having_timeout``.
"""

from __future__ import annotations

import select
import ssl
import struct
import threading
from collections import Counter, deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from amqp import spec
from amqp.basic_message import Message
from amqp.exceptions import AMQPError

from celery_lease.brokers.amqp.delivery import CLOSED
from celery_lease.brokers.amqp.frames import is_green, spoil

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from celery_lease.core.clock import Clock

#: One frame as py-amqp reads it: its type, its channel's number, its payload.
Frame = tuple[int, int, bytes]
METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
#: The begin of an answer's payload.
FLOW_OK = struct.pack(">HH", *spec.Channel.FlowOk)

#: Seconds between two looks for an answer.
LOOK = 0.01
#: Seconds that the rest of a frame may take, and the most frames that one look reads.
FRAME_TIMEOUT, FRAMES = 1.0, 1000
#: The most seconds of silence that one look counts: a process that was stopped saw none.
LONGEST_LOOK = 1.0
#: Heartbeats that may be missed. RabbitMQ sends one in each half of the agreed interval, and gives
#: up a client after two whole intervals at the earliest: this end gives up before.
MISSED = 1.5


class Reader:
    """Reads one connection. Any thread may call it."""

    def __init__(self, connection: Any, clock: Clock) -> None:
        self._connection = connection
        self._clock = clock
        #: Held by the reading thread, and around the frames that were read ahead. The consuming
        #: thread takes it for as long as it waits for a frame, others only when it is free.
        #: Reentrant, because a signal handler may read in the thread that it interrupted.
        self._lock = threading.RLock()
        self._frames: deque[Frame] = deque()  # read ahead, the oldest first; under the lock
        self._reads = 0  # by the consuming thread
        self._left = -1  # reads at the last look, if there was unread data
        self._looked_at = clock.now()
        self._silence = 0.0  # seconds seen to pass since the last frame
        self._asked: Counter[int] = Counter()  # questions, by channel
        self._answers: Counter[int] = Counter()
        self._answered = threading.Event()
        #: Channels that the broker closed, or of which it took messages back, by frames read ahead.
        self.closed: set[int] = set()
        self.has_ended = False  #: nothing more can be read

    def read(self, timeout: float | None = None) -> Any:
        """Read and handle the next frame; replaces the connection's ``blocking_read``.

        After a heartbeat or an answer py-amqp would wait for the whole timeout again, and where one
        comes more often than that, a loop that waits would never look at anything else.
        """
        with self._lock:
            self._reads += 1
            frame = self._frames.popleft() if self._frames else self._receive(timeout)
        if frame is None:
            return True
        return self._connection.on_inbound_frame(frame) or frame[0] == HEARTBEAT

    def catch_up(self) -> None:
        while self._frames:
            self.read(0)

    def read_ahead(self) -> None:
        """Read the frames that the consuming thread has left unread since the last call."""
        self._count_silence()
        if self.has_ended or not self._lock.acquire(blocking=False):
            return  # the consuming thread reads
        try:
            unread = self._has_unread()
            left, self._left = self._left, self._reads if unread else -1
            if unread and left == self._reads:
                self._take_in()
        finally:
            self._lock.release()

    def is_silent(self) -> bool:
        """Whether the broker has been silent for longer than the agreed heartbeats allow."""
        heartbeat = self._connection.heartbeat
        return bool(heartbeat) and self._silence > heartbeat * MISSED

    def confirm(self, channels: Iterable[Any], timeout: float) -> set[Any]:
        """Ask the broker on *channels*; return those with an answer within *timeout* seconds."""
        asked = {channel: number for channel in channels if (number := self._ask(channel))}
        for _ in range(int(timeout / LOOK) + 1):
            self._answered.clear()
            left = [each for each in asked if self._answers[each.channel_id] < asked[each]]
            if not left or self.has_ended or self.is_silent():
                break
            self.read_ahead()
            self._answered.wait(LOOK)
        return {each for each in asked if self._answers[each.channel_id] >= asked[each]}

    def forget(self, channel_id: int) -> None:
        """Forget the questions of a channel that is closing: its number may be used again soon."""
        self.closed.discard(channel_id)
        self._asked.pop(channel_id, None)
        self._answers.pop(channel_id, None)

    def take_deliveries(
        self, channel_id: int, ours: Callable[[str], bool]
    ) -> list[tuple[int, str, Message]]:
        """Remove messages that no thread has handled; return their number, consumer and message.

        While the consuming thread reads, there are none: it takes frames read ahead first.

        Args:
            channel_id: The channel's number.
            ours: Whether a consumer's messages are meant, by its tag.
        """
        taken: list[tuple[int, str, Message]] = []
        if not self._lock.acquire(blocking=False):
            return taken
        try:
            for frames in _deliveries(self._frames, channel_id, ours):
                taken.append((*_delivered(frames[0][2]), _message(frames)))
                for frame in frames:
                    _remove(self._frames, frame)
        finally:
            self._lock.release()
        return taken

    def _ask(self, channel: Any) -> int:
        """Send a question; return its number on the channel, or 0 if that is closed."""
        number = channel.channel_id
        self._asked[number] += 1
        try:
            channel.send_method(spec.Channel.Flow, "b", (True,))
        except OSError:
            spoil(self._connection)
            return 0
        except CLOSED:
            return 0
        return self._asked[number]

    def _receive(self, timeout: float | None) -> Frame | None:
        """Read a frame; None: an answer to a question, which the consuming thread skips."""
        transport = self._connection.transport
        with transport.having_timeout(timeout):
            frame: Frame = transport.read_frame()
        self._silence = 0.0
        kind, channel, payload = frame
        if kind == METHOD and payload[:4] == FLOW_OK:
            self._connection.bytes_recv += 1
            self._answers[channel] += 1
            self._answered.set()
            return None
        return frame

    def _take_in(self) -> None:
        """Read all unread frames."""
        try:
            for _ in range(FRAMES):
                if not self._has_unread():
                    break
                frame = self._receive(LOOK if _poll() is None else FRAME_TIMEOUT)
                if frame is not None:
                    self._keep(frame)
        except TimeoutError:
            return
        except (AMQPError, AttributeError, OSError):  # closed meanwhile, or by the broker
            self.has_ended = True  # the consuming thread finds out by itself

    def _keep(self, frame: Frame) -> None:
        self._connection.bytes_recv += 1  # for the check of heartbeats
        kind, channel, payload = frame
        if kind == HEARTBEAT:
            return
        if kind == METHOD and _method(payload) in (spec.Channel.Close, spec.Basic.Cancel):
            self.closed.add(channel)
        elif kind == METHOD and _method(payload) == spec.Connection.Close:
            self.has_ended = True
        self._frames.append(frame)

    def _has_unread(self) -> bool:
        """Whether there is unread data; without a poll object True: reading is tried."""
        poller = _poll()
        if poller is None:
            return True
        with suppress(AttributeError, OSError, TypeError, ValueError):
            sock = self._connection.sock
            if isinstance(sock, ssl.SSLSocket) and sock.pending():  # decrypted, and not read
                return True
            poller.register(sock, select.POLLIN)
            return bool(poller.poll(0))
        return False  # the socket is gone

    def _count_silence(self) -> None:
        now = self._clock.now()
        self._silence += min(max(now - self._looked_at, 0.0), LONGEST_LOOK)
        self._looked_at = now


def attach(connection: Any, clock: Clock) -> None:
    """Let a :class:`Reader` read a py-amqp *connection*; a second call does nothing."""
    if reader_of(connection) is None:
        connection.lease_reader = reader = Reader(connection, clock)
        connection.blocking_read = reader.read


def reader_of(connection: Any) -> Reader | None:
    """Return the reader of a connection; None: it has none."""
    return getattr(connection, "lease_reader", None)


def _poll() -> Any:
    """Return a new poll object; None where loops are green and select is replaced."""
    return None if is_green() else select.poll()


def _method(payload: bytes) -> tuple[int, int]:
    class_id, method_id = struct.unpack_from(">HH", payload)
    return class_id, method_id


def _deliveries(
    frames: Iterable[Frame], channel_id: int, ours: Callable[[str], bool]
) -> list[list[Frame]]:
    """Return the frames of each complete message that was delivered on a channel."""
    found: list[list[Frame]] = []
    parts, missing = list[Frame](), 0
    for frame in frames:
        kind, channel, payload = frame
        if channel != channel_id:
            continue
        if kind == METHOD:
            is_ours = _method(payload) == spec.Basic.Deliver and ours(_delivered(payload)[1])
            parts = [frame] if is_ours else []
        elif parts:
            parts.append(frame)
            missing = _body_size(payload) if kind == HEADER else missing - len(payload)
            if missing <= 0:
                found.append(parts)
                parts = []
    return found


def _delivered(payload: bytes) -> tuple[int, str]:
    """Return the number and the consumer's tag of a delivery."""
    end = 5 + payload[4]
    (number,) = struct.unpack_from(">Q", payload, end)
    return int(number), bytes(payload[5:end]).decode()


def _message(frames: Sequence[Frame]) -> Message:
    message: Any = Message()
    message.inbound_header(frames[1][2])
    for _, _, payload in frames[2:]:
        message.inbound_body(payload)
    return message  # type: ignore[no-any-return]


def _body_size(payload: bytes) -> int:
    (size,) = struct.unpack_from(">Q", payload, 4)
    return int(size)


def _remove(frames: deque[Frame], frame: Frame) -> None:
    """Remove this very frame, not one that is equal to it."""
    for index, each in enumerate(frames):
        if each is frame:
            del frames[index]
            return
