"""Counts the deliveries of a message.

A quorum queue counts: ``x-delivery-count`` is the number of earlier deliveries, including orderly
returns (RabbitMQ 4.3 leaves those out). A classic queue only flags a redelivery; its deliveries are
counted here, from the ones that this worker has seen: at least two, and exact while no other worker
gets the message in between.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from celery_lease.brokers.losses import REMEMBERED, remember

if TYPE_CHECKING:
    from collections.abc import Mapping

HEADER = "x-delivery-count"


class Counts:
    """Counts deliveries. For the consuming thread only."""

    def __init__(self, remembered: int = REMEMBERED) -> None:
        self._seen: OrderedDict[str, int] = OrderedDict()  # of messages that were redelivered
        self._remembered = remembered

    def count(self, message_id: str, headers: Mapping[str, object], *, redelivered: bool) -> int:
        """Return the number of a delivery; the first is 1."""
        if not redelivered:
            self._seen.pop(message_id, None)
            return 1
        count = headers.get(HEADER)
        earlier = count if isinstance(count, int) else self._seen.get(message_id, 1)
        number = max(2, earlier + 1)
        remember(self._seen, message_id, number, self._remembered)
        return number
