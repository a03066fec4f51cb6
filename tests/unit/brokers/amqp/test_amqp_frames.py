"""Frames from several threads into one RabbitMQ connection."""

from __future__ import annotations

import socket
import ssl
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from celery_lease.brokers.amqp import frames
from unit.fakes import PATIENCE


def connection_on(sock: Any, write: Any = print, read: Any = print) -> Any:
    """Return what a guard needs of a connection."""
    return SimpleNamespace(
        sock=sock, frame_writer=write, transport=SimpleNamespace(read_frame=read)
    )


def test_frames_are_written_one_after_the_other() -> None:
    """A second thread waits for the first one's last byte."""
    entered, go_on, written = threading.Event(), threading.Event(), []

    def write(frame: str) -> None:
        written.append(f"{frame} begins")
        entered.set()
        assert go_on.wait(PATIENCE)
        written.append(f"{frame} ends")

    connection = connection_on(socket.socket(), write)
    frames.guard(connection)
    frames.guard(connection)  # a channel opened later on the same connection
    first, second = (
        threading.Thread(target=connection.frame_writer, args=[name]) for name in ("one", "two")
    )
    first.start()
    assert entered.wait(PATIENCE)
    second.start()
    second.join(0.05)  # unguarded, it would begin now
    go_on.set()
    first.join(PATIENCE)
    second.join(PATIENCE)
    assert written == ["one begins", "one ends", "two begins", "two ends"]
    connection.sock.close()


def test_a_thread_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be a signal handler that interrupted the very write it waits for."""
    monkeypatch.setattr(frames, "TURN_TIMEOUT", 0.01)

    def write() -> None:
        connection.frame_writer()

    connection = connection_on(socket.socket(), write)
    frames.guard(connection)
    with pytest.raises(TimeoutError):
        connection.frame_writer()
    connection.sock.close()


def test_with_tls_reading_takes_its_turn_too() -> None:
    """One session must not be used by two threads; a plain socket may be."""
    plain, peer = socket.socketpair()
    reads = []
    connection = connection_on(plain, read=reads.append)
    frames.guard(connection)
    assert connection.transport.read_frame == reads.append

    def read() -> bool:
        return bool(connection.lease_frames.locked())

    context = ssl.create_default_context()
    with context.wrap_socket(
        plain, server_hostname="broker", do_handshake_on_connect=False
    ) as session:
        connection = connection_on(session, read=read)
        frames.guard(connection)
        assert connection.transport.read_frame()
    peer.close()
