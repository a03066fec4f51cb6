"""Creates fencing tokens from the host's clock, as RabbitMQ has no counter for a task's messages.

Microseconds since 1970, and always more than the last token of this worker. Over all deliveries
and retries of a task a token grows, provided that the clocks of the workers' hosts agree better
than the time between two of its deliveries: a redelivery after a crash can follow in milliseconds,
one after an expiry follows after seconds. Tokens stay below 2**53, which doubles hold exactly.
"""

from __future__ import annotations


class Tokens:
    """Creates tokens. For the consuming thread only."""

    def __init__(self) -> None:
        self._last = 0

    def next(self, at: float) -> int:
        """Return the next token; *at* is the time, in seconds since 1970."""
        self._last = max(self._last + 1, int(at * 1_000_000))
        return self._last
