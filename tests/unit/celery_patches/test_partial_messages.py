"""What task processes have sent is read before the event loop is reset."""

from __future__ import annotations

import logging
import os
import pickle
import struct
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from celery.concurrency.asynpool import ResultHandler
from kombu.asynchronous import Hub, set_event_loop

from celery_lease.celery_patches import partial_messages

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.compat


def packed(message: object) -> tuple[bytes, bytes]:
    """Return the two parts of a message of a task process: its length, and its text."""
    body = pickle.dumps(message)
    return struct.pack("!i", len(body)), body


class Owner(SimpleNamespace):
    """Something that can be referred to weakly."""


class Reading:
    """Celery's event loop and its reader of what task processes send, and a pipe from one."""

    def __init__(self) -> None:
        self.hub = Hub()
        self.heard: list[object] = []
        self.ours, self.theirs = os.pipe()
        os.set_blocking(self.ours, False)
        handler: Any = object.__new__(ResultHandler)
        handler.fileno_to_outq = {self.ours: "a process"}
        handler.on_state_change = self.hear
        handler.register_with_event_loop(self.hub)
        self.hub.add_reader(self.ours, handler.handle_event, self.ours)
        processes = SimpleNamespace(_fileno_to_outq=handler.fileno_to_outq)
        self.consumer: Any = Owner(hub=self.hub, pool=SimpleNamespace(_pool=processes))
        partial_messages.read_to_the_end(self.consumer)

    def hear(self, message: object) -> None:
        self.heard.append(message)
        if message == "wrong":
            raise ValueError(message)

    def send(self, message: object) -> bytes:
        """Send the length of a message, let the loop read it, and return the rest."""
        length, body = packed(message)
        os.write(self.theirs, length)
        self.hub.run_once()
        return body

    def close(self) -> None:
        self.hub.close()
        os.close(self.ours)
        os.close(self.theirs)


@pytest.fixture
def reading() -> Iterator[Reading]:
    """Return an event loop of its own with a pipe."""
    reading = Reading()
    yield reading
    reading.close()
    set_event_loop(None)


@pytest.mark.parametrize("message", ["right", "wrong"])
def test_a_message_that_is_half_read_is_read_before_the_loop_is_reset(
    reading: Reading, message: str
) -> None:
    """Whatever comes of it; the loop forgets its readers all the same."""
    os.write(reading.theirs, reading.send(message))
    reading.hub.reset()
    assert reading.heard == [message]
    assert not reading.hub.readers


def test_messages_that_nobody_has_read_are_read_before_the_loop_is_reset(reading: Reading) -> None:
    """A start among them: at a lost connection Celery forgets tasks that have not started."""
    rest = reading.send("half")
    sent = [packed(each) for each in ("wrong", "right")]
    os.write(reading.theirs, rest + b"".join(part for parts in sent for part in parts))
    reading.hub.reset()
    assert reading.heard == ["half", "wrong", "right"]


def test_a_process_that_is_gone_keeps_no_loop(reading: Reading) -> None:
    """Its last message is read."""
    os.write(reading.theirs, b"".join(packed("last")))
    os.close(reading.theirs)
    reading.theirs = os.open(os.devnull, os.O_WRONLY)
    reading.hub.reset()
    assert reading.heard == ["last"]


def test_a_message_that_does_not_come_is_given_up(
    reading: Reading, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its process is stopped or was killed: nobody waits for it for long."""
    monkeypatch.setattr(partial_messages, "MESSAGE_TIMEOUT", 0.0)
    reading.send("half")
    with caplog.at_level(logging.WARNING):
        reading.hub.reset()
    assert reading.heard == []
    assert "it is discarded" in caplog.text


def test_a_worker_without_an_event_loop_has_none_to_reset() -> None:
    """As under gevent."""
    partial_messages.read_to_the_end(SimpleNamespace(hub=None))
