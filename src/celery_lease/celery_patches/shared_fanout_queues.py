"""Gives a kombu channel on Redis its own table of fanout queues.

Kombu's channels share one, which breaks when one of them closes while another declares.

Upstream: not reported; the table is an attribute of the class (kombu/transport/redis.py).
Versions: kombu 5.5.4 to 5.7.0.
"""

from __future__ import annotations

from typing import Any


def channel_of_its_own(connection: Any) -> Any:
    """Open a channel for a thread beside the main loop's."""
    channel = connection.channel()
    if hasattr(channel, "_fanout_queues"):
        channel._fanout_queues = {}  # noqa: SLF001
    return channel
