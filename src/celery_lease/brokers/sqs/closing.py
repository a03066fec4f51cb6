"""Waits for the polls that are under way when the event loop closes.

The messages of such a poll would be invisible for the queue's whole timeout: no client is left to
receive them, and SQS does not promise to notice that. So the loop's HTTP client closes only when
its polls were answered, which takes no longer than they wait: by then no task runs any more.

Uses of kombu internals, as read in 5.7.0: the loop's ``_current_http_client``, which is closed with
the loop, and its ``_multi`` and ``_process_pending_requests``. Kombu 5.5 polls in the loop itself,
so no poll is under way there.
"""

from __future__ import annotations

import logging
import threading
from typing import Any

from celery_lease.core.words import counted

logger = logging.getLogger(__name__)

#: Seconds that the answer to a poll may take beyond its own wait.
GRACE = 1.0
#: Seconds between two looks at the sockets.
INTERVAL = 0.05


def finish_polls(channel: Any) -> None:
    """Make the loop's client wait for this channel's polls when it closes; safe to repeat."""
    client = getattr(channel.hub, "_current_http_client", None)
    if client is None or not hasattr(client, "_multi") or "close" in vars(client):
        return
    close = client.close

    def close_after_polls() -> None:
        # If consumers are left, this is no shutdown: the loop failed, and starts again at once.
        if channel.polls and not channel._consumers:  # noqa: SLF001
            channel.closing = True
            _wait(channel, client)
        close()

    client.close = close_after_polls


def _wait(channel: Any, client: Any) -> None:
    wait = channel.wait_time_seconds + GRACE
    end = max(poll.asked_at for poll in channel.polls.values()) + wait
    logger.info("waiting for the end of %s of SQS", counted(len(channel.polls), "poll"))
    pause = threading.Event()
    while channel.polls and channel.lease_clock.now() < end:
        client._multi.socket_all()  # noqa: SLF001
        client._process_pending_requests()  # noqa: SLF001
        pause.wait(INTERVAL)
