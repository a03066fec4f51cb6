"""Frames that are read for a thread that stands still, over a real pair of sockets."""

from __future__ import annotations

import inspect
import struct
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

import amqp
import pytest
from amqp import spec
from amqp.transport import TCPTransport

from celery_lease.brokers.amqp.reader import (
    BODY,
    HEADER,
    HEARTBEAT,
    LONGEST_LOOK,
    METHOD,
    MISSED,
    Frame,
    Reader,
    attach,
    reader_of,
)
from harness.waiting import eventually
from unit.amqp_channel import FakeChannel, FakeConnection
from unit.fakes import FakeClock

if TYPE_CHECKING:
    from collections.abc import Iterator


class Connection(FakeConnection):
    """A connection whose transport is py-amqp's, on the socket as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.transport: Any = TCPTransport("127.0.0.1")
        self.transport.sock = self.sock
        self.transport._quick_recv = self.sock.recv
        self.bytes_recv = 0
        self.handled: deque[Frame] = deque()

    def on_inbound_frame(self, frame: Frame) -> bool:
        self.handled.append(frame)
        return frame[0] != HEARTBEAT

    def arrive(self, *frames: Frame) -> None:
        for kind, channel, payload in frames:
            head = struct.pack(">BHI", kind, channel, len(payload))
            self.peer.send(head + payload + b"\xce")


def method(sig: tuple[int, int], rest: bytes = b"", channel: int = 1) -> Frame:
    """Return the frame of a method."""
    return METHOD, channel, struct.pack(">HH", *sig) + rest


def delivery(number: int, body: bytes = b"ab", *, consumer: str = "c", channel: int = 1) -> Any:
    """Return the frames of a message."""
    tag = consumer.encode()
    rest = bytes([len(tag)]) + tag + struct.pack(">Q", number) + b"\0\0\0"
    header = struct.pack(">HHQ", 60, 0, len(body)) + b"\0\0"
    return [
        method(spec.Basic.Deliver, rest, channel),
        (HEADER, channel, header),
        *((BODY, channel, body[each : each + 1]) for each in range(len(body))),
    ]


@pytest.fixture
def clock() -> FakeClock:
    """Time that the test moves."""
    return FakeClock()


@pytest.fixture
def connection() -> Iterator[Connection]:
    """An open connection."""
    connection = Connection()
    yield connection
    connection.close()


@pytest.fixture
def reader(connection: Connection, clock: FakeClock) -> Reader:
    """Its reader."""
    attach(connection, clock)
    attach(connection, clock)
    reader = reader_of(connection)
    assert reader is not None
    return reader


def look(reader: Reader, times: int = 2) -> None:
    """Look what lies unread."""
    for _ in range(times):
        reader.read_ahead()


def test_what_was_read_ahead_is_handled_by_the_loop_in_its_order(
    connection: Connection, reader: Reader
) -> None:
    """And not before; what comes later follows."""
    frames = [method(spec.Basic.CancelOk, bytes([each])) for each in range(3)]
    connection.arrive(*frames[:2])
    look(reader)
    assert not connection.handled
    assert connection.bytes_recv == 2
    connection.arrive(frames[2])
    for _ in frames:
        connection.blocking_read(1.0)  # type: ignore[attr-defined]
    assert list(connection.handled) == frames


def test_nothing_is_taken_that_the_loop_may_be_about_to_read(
    connection: Connection, reader: Reader
) -> None:
    """Only what lay there at two looks between which it read nothing."""
    connection.arrive(*[method(spec.Basic.CancelOk)] * 2)
    look(reader, 1)
    reader.read(1.0)
    look(reader, 1)
    assert connection.bytes_recv == 0
    look(reader, 1)
    assert connection.bytes_recv == 1


def test_an_answer_confirms_the_channel_it_came_on_and_is_shown_to_nobody(
    connection: Connection, reader: Reader
) -> None:
    """Whoever reads it: the loop, or who asks."""
    answered, other = FakeChannel(connection), FakeChannel(connection)
    answered.channel_id, other.channel_id = 1, 2
    assert reader.confirm([answered, other], 0.05) == set()
    assert answered.frames == [(spec.Channel.Flow, True)]
    connection.arrive(method(spec.Channel.FlowOk, b"\1"))
    assert reader.read(1.0)
    connection.arrive(method(spec.Channel.FlowOk, b"\1"))
    assert reader.confirm([answered, other], 0.2) == {answered}
    assert not connection.handled


@pytest.mark.parametrize("frame", [(HEARTBEAT, 0, b""), method(spec.Channel.FlowOk, b"\1")])
def test_a_wait_for_events_ends_with_a_frame_that_is_no_event(
    connection: Connection, reader: Reader, frame: Frame
) -> None:
    """By py-amqp alone it would begin anew, and with one in each timeout never end.

    The main loop of a green worker waits so, and looks only afterwards whether it has to stop.
    """
    assert connection.blocking_read == reader.read  # type: ignore[attr-defined]
    connection.arrive(frame)
    amqp.Connection.drain_events(connection, 1.0)
    with pytest.raises(TimeoutError):
        amqp.Connection.drain_events(connection, 0.01)


def test_a_new_channel_is_asked_anew(connection: Connection, reader: Reader) -> None:
    """What the one before it left unanswered is not waited for."""
    channel = FakeChannel(connection)
    channel.channel_id = 1
    assert reader.confirm([channel], 0.02) == set()
    reader.forget(1)
    connection.arrive(method(spec.Channel.FlowOk, b"\1"))
    assert reader.confirm([channel], 0.2) == {channel}


def test_messages_nobody_has_seen_are_taken_whole(connection: Connection, reader: Reader) -> None:
    """Of our consumers and of one channel; not one of which a part is missing."""
    foreign = [*delivery(9, consumer="pidbox"), *delivery(8, channel=2)]
    part = delivery(3)[:-1]
    connection.arrive(*delivery(1), *foreign, *delivery(2, b""), *part)
    look(reader)
    taken = reader.take_deliveries(1, lambda tag: tag == "c")
    assert [(number, tag, raw.body) for number, tag, raw in taken] == [
        (1, "c", b"ab"),
        (2, "c", ""),
    ]
    assert reader.take_deliveries(1, lambda tag: tag == "c") == []
    reader.catch_up()
    assert list(connection.handled) == [*foreign, *part]


def test_the_rest_of_a_message_that_the_loop_has_begun_is_its_own(
    connection: Connection, reader: Reader
) -> None:
    """Its number is not known here."""
    frames = delivery(1)
    connection.arrive(*frames)
    reader.read(1.0)
    look(reader)
    assert reader.take_deliveries(1, lambda _: True) == []
    reader.catch_up()
    assert list(connection.handled) == frames


def test_nobody_waits_for_a_loop_that_waits_for_its_broker(
    connection: Connection, reader: Reader
) -> None:
    """Who asks for messages ends the worker if the broker stays silent."""
    waiting = threading.Thread(target=reader.read, daemon=True)
    waiting.start()
    eventually(lambda: reader._lock.acquire(blocking=False) is False or reader._lock.release())
    asking = threading.Thread(target=reader.take_deliveries, args=(1, bool), daemon=True)
    asking.start()
    asking.join(5)
    assert not asking.is_alive()
    connection.arrive(method(spec.Basic.CancelOk))
    waiting.join(5)
    assert not waiting.is_alive()


def test_a_channel_that_was_closed_is_known_before_the_loop_knows(
    connection: Connection, reader: Reader
) -> None:
    """Its messages are with others."""
    connection.arrive(method(spec.Channel.Close, b"\0" * 7, channel=5))
    look(reader)
    assert reader.closed == {5}
    assert not reader.has_ended


def test_the_end_of_a_connection_is_noticed(connection: Connection, reader: Reader) -> None:
    """After what came before it."""
    connection.arrive(method(spec.Basic.CancelOk))
    connection.peer.close()
    look(reader)
    assert reader.has_ended
    assert connection.bytes_recv == 1


def test_silence_is_what_was_looked_at(
    connection: Connection, reader: Reader, clock: FakeClock
) -> None:
    """Not the time in which this process itself stood still, nor after a heartbeat."""
    clock.advance(1000)
    look(reader, 1)
    assert not reader.is_silent()
    for _ in range(int(connection.heartbeat * MISSED / LONGEST_LOOK)):
        clock.advance(LONGEST_LOOK)
        look(reader, 1)
    assert reader.is_silent()
    connection.arrive((HEARTBEAT, 0, b""))
    look(reader)
    assert not reader.is_silent()
    reader.catch_up()
    assert not connection.handled


def test_py_amqp_reads_by_what_is_replaced() -> None:
    """One place reads frames, and hands them on as they are."""
    source = inspect.getsource(amqp.Connection.blocking_read)
    assert "self.transport.having_timeout(timeout)" in source
    assert "frame = self.transport.read_frame()" in source
    assert "return self.on_inbound_frame(frame)" in source
    assert "self.blocking_read(timeout)" in inspect.getsource(amqp.Connection.drain_events)
