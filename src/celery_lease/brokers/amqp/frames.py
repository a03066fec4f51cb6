"""Single frames to a connection, from any thread; what is read stays the consuming thread's.

Uses of py-amqp internals, as read in 5.3.1 and 5.4.2: ``Connection.frame_writer``, which from 5.4
on takes turns by itself, ``Transport.read_frame``, ``send_heartbeat``, and that a method without an
answer is one frame.
"""

from __future__ import annotations

import select
import socket
import ssl
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

#: The peer has closed its end, whether or not all it sent has been read; Linux only.
_CLOSED = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR


#: Longest wait for another thread's frame, in seconds; a socket is given up by the system before.
TURN_TIMEOUT = 5.0


def guard(connection: Any) -> None:
    """Let only one thread at a time write to a py-amqp *connection*; a second call does nothing.

    With TLS a thread that reads counts too: Python up to 3.12 lets two threads into one session.
    """
    if getattr(connection, "lease_frames", None) is not None:
        return
    connection.lease_frames = lock = threading.Lock()
    connection.frame_writer = _one_by_one(connection.frame_writer, lock)
    if isinstance(connection.sock, ssl.SSLSocket):
        connection.transport.read_frame = _one_by_one(connection.transport.read_frame, lock)


def _one_by_one(call: Callable[..., Any], lock: threading.Lock) -> Callable[..., Any]:
    def alone(*args: Any, **kwargs: Any) -> Any:
        if not lock.acquire(timeout=TURN_TIMEOUT):
            raise TimeoutError("another thread's frame blocks the connection")
        try:
            return call(*args, **kwargs)
        finally:
            lock.release()

    return alone


def is_cut(connection: Any) -> bool:
    """Tell whether the peer has closed a connection, though nobody has read that yet.

    Where the loop that reads is a green one it does so in time, and select is replaced there.
    """
    if getattr(getattr(select, "poll", None), "__module__", "") != "select":
        return False
    poller = select.poll()
    try:
        poller.register(connection.sock, _CLOSED)
        return bool(poller.poll(0))
    except (AttributeError, OSError, TypeError, ValueError):  # it has no socket any more
        return True


def spoil(connection: Any) -> None:
    """End a connection into which a frame was not written whole: what follows means nothing.

    The consuming thread finds it closed; it alone may close the socket.
    """
    with suppress(AttributeError, OSError):
        connection.sock.shutdown(socket.SHUT_RDWR)
