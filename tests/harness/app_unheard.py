"""Tasks with exclusive keys, where some calls that take a key are lost, or their answers."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

import harness.app_keys  # noqa: F401  (its tasks)
from celery_lease.brokers.redis.server import Server
from harness.app import app

if TYPE_CHECKING:
    from typing import Any

__all__ = ["app"]

#: One in so many calls is lost, and another one's answer.
EACH = 14

_run = Server.run
_takes = count(1)


def _unheard(self: Server, name: str, keys: list[str], args: list[Any]) -> Any:
    number = next(_takes) % EACH if name == "take" else 1
    message = "the call is lost" if number == 0 else "the answer is lost"
    if number == 0:
        raise ConnectionError(message)
    reply = _run(self, name, keys, args)
    if number == EACH // 2:
        raise ConnectionError(message)
    return reply


Server.run = _unheard  # type: ignore[method-assign]
