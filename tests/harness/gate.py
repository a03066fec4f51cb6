"""A TCP relay in front of a server that a test opens and closes: an outage without loss of data."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Self

from harness.waiting import free_port


class Gate:
    """Relays connections to a port while it is open; closed, it refuses them and cuts others."""

    def __init__(self, target: int) -> None:
        self.port = free_port()
        self._target = target
        self._listener: socket.socket | None = None
        self._ends: list[socket.socket] = []

    def open(self) -> Self:
        """Listen."""
        self._listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()
        return self

    def close(self) -> None:
        """Refuse new connections and cut those that there are."""
        ends, self._ends = self._ends, []
        for end in (*filter(None, [self._listener]), *ends):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self._listener = None

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                client = listener.accept()[0]
                server = socket.create_connection(("127.0.0.1", self._target))
                self._ends += [client, server]
                for pair in ((client, server), (server, client)):
                    threading.Thread(target=_relay, args=pair, daemon=True).start()

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, *_: object) -> None:
        self.close()


def _relay(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
