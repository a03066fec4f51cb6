"""A TCP proxy that can keep what clients send, and deliver it although they are gone.

It can fall silent, too: then neither end hears anything of the other, its end neither.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Self


class TcpProxy:
    """Forwards from a port of its own to another of 127.0.0.1."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._flows = threading.Event()
        self._flows.set()
        self._thawed = threading.Event()
        self._thawed.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._sockets: list[socket.socket] = [self._listener]
        threading.Thread(target=self._accept, daemon=True).start()

    def hold(self) -> None:
        """Keep everything that clients send from now on."""
        self._flows.clear()

    def release(self) -> None:
        """Deliver what was kept, and all that follows."""
        self._flows.set()

    def freeze(self) -> None:
        """Keep everything from both ends, also that one of them has hung up."""
        self._thawed.clear()

    def thaw(self) -> None:
        """Deliver what was kept, and all that follows."""
        self._thawed.set()

    def cut(self) -> None:
        """Close every connection, at both ends."""
        for each in self._sockets[1:]:
            self._end(each)

    def ports(self) -> list[int]:
        """Return the ports from which it is connected to the target."""
        return [each.getsockname()[1] for each in self._sockets[2::2] if each.fileno() != -1]

    def close(self) -> None:
        self._flows.set()
        self._thawed.set()
        for each in self._sockets:
            self._end(each)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
                self._sockets += [client, server]
                for pair in ((client, server, True), (server, client, False)):
                    threading.Thread(target=self._pump, args=pair, daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, held: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if held:
                    self._flows.wait()
                self._thawed.wait()
                target.sendall(data)
        self._thawed.wait()
        self._end(target)

    @staticmethod
    def _end(each: socket.socket) -> None:
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
        each.close()
