"""Waiting for a condition instead of for a time."""

from __future__ import annotations

import socket

from celery_lease.testing.waiting import always, eventually

__all__ = ["always", "eventually", "free_port"]


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 that nothing listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
