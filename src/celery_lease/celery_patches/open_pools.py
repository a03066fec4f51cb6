"""Closes the pool of a pgmq transport that could not connect.

Kombu leaves it open, with its threads, until it is collected. Psycopg_pool raises if that happens
in one of these threads. Each attempt to make the extension makes another pool.

Upstream: not reported (kombu/transport/pgmq.py: ``establish_connection``).
Versions: kombu 5.7.0.
"""

from __future__ import annotations

from functools import cache
from typing import Any


class _Closing:
    """A mixin for kombu's pgmq transport."""

    _pgmq_client: Any

    def establish_connection(self) -> Any:
        try:
            return super().establish_connection()  # type: ignore[misc]
        except BaseException:
            client, self._pgmq_client = self._pgmq_client, None
            if client is not None:
                client.pool.close()
            raise

    def _apply_pool_timeout(self, client: Any, options: Any) -> None:
        # The first to see the pool; an extension that cannot be made ends what follows.
        self._pgmq_client = client
        super()._apply_pool_timeout(client, options)  # type: ignore[misc]


@cache
def closing(transport: Any) -> Any:
    """Return a subclass of a pgmq transport class that closes its pool if it cannot connect.

    The class itself, if it does so already.
    """
    if issubclass(transport, _Closing):
        return transport
    return type(transport.__name__, (_Closing, transport), {})
