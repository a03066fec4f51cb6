"""Writes single frames to a connection, from any thread; for reading see :mod:`.reader`.

Uses of py-amqp internals, as read in 5.3.1 and 5.4.2: ``Connection.frame_writer``, which from 5.4
on has a lock of its own, ``Transport.read_frame``, ``send_heartbeat``, and that a method without an
answer is one frame.
"""

from __future__ import annotations

import select
import socket
import ssl
import threading
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

#: The peer has closed its end, even if some of its data is not read yet; Linux only.
_CLOSED = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR


#: Longest wait for another thread's frame, in seconds; the system gives up a socket before.
TURN_TIMEOUT = 5.0


@cache
def is_green() -> bool:
    """Whether loops here are green: select is replaced, and a wait lets other greenlets run."""
    return getattr(getattr(select, "poll", None), "__module__", "") != "select"


def guard(connection: Any) -> None:
    """Serialize the threads that write to a py-amqp *connection*; a second call does nothing.

    With TLS a reading thread counts, too: Python up to 3.12 lets two threads into one session.
    Greenlets never are in it at the same time, and a reading one would keep the lock all the time.
    """
    if getattr(connection, "lease_frames", None) is not None:
        return
    connection.lease_frames = lock = threading.Lock()
    connection.frame_writer = _one_by_one(connection.frame_writer, lock)
    if isinstance(connection.sock, ssl.SSLSocket) and not is_green():
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
    """Return whether the peer has closed a connection, even if that is not read yet.

    A green loop reads it in time, and select is replaced there: then the answer is False.
    """
    if is_green():
        return False
    poller = select.poll()
    try:
        poller.register(connection.sock, _CLOSED)
        return bool(poller.poll(0))
    except (AttributeError, OSError, TypeError, ValueError):  # the socket is gone
        return True


def spoil(connection: Any) -> None:
    """End a connection into which a frame was written in part: later frames would be garbage.

    The consuming thread finds it closed; only that thread may close the socket.
    """
    with suppress(AttributeError, OSError):
        connection.sock.shutdown(socket.SHUT_RDWR)
