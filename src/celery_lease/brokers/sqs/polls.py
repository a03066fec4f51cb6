"""Kombu's polls of SQS, with what a lease needs to know of them and without their sudden ends.

Kombu 5.7 takes a poll that was not answered for an empty list where it wants a mapping, and the
worker ends; any other error ends it too. Here a poll that SQS did not serve has brought nothing,
the log says so once, and the next one waits a little.

Uses of kombu internals, as read in 5.5.4 and 5.7.0: ``AsyncSQSConnection._on_list_ready`` and its
names for the attributes that a poll asks for; ``_multi``, which only the HTTP client has that does
not block; and where an answer's headers are: with those of the request (curl), or where one looks
for them (urllib3).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from kombu.asynchronous.http import get_client

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

logger = logging.getLogger(__name__)

#: What a poll brings that was not served; told from an empty one by identity.
NOT_SERVED: Mapping[str, Any] = {}

#: Errors, in the text of SQS's answer, that pass: the next poll may be served. ``OverLimit``: the
#: queue has 120,000 messages in flight. Any other error is the operator's, and kombu's to raise.
_PASSING = (
    b"Throttl",
    b"OverLimit",
    b"InternalError",
    b"InternalFailure",
    b"ServiceUnavailable",
    b"ExpiredToken",
    b"RequestExpired",
)
#: Names that kombu's versions give the list of attributes, and the one that leases want besides.
_ATTRIBUTE_LISTS = ("message_system_attribute_names", "fetch_message_attributes")
_SENT = "SentTimestamp"
#: Where an answer's date is put for :meth:`Poll.served`.
_DATE = "Date"


@dataclass(frozen=True, slots=True)
class Poll:
    """One call that receives messages."""

    asked_at: float  #: clock reading before it was sent
    served_at: int | None = None  #: when SQS answered, in seconds since 1970, if it said so

    def served(self, response: Mapping[str, Any]) -> Poll:
        """Return it with the time of SQS's answer, where that is known."""
        try:
            served_at = int(parsedate_to_datetime(response[_DATE]).timestamp())
        except (KeyError, TypeError, ValueError):
            return self
        return Poll(self.asked_at, served_at)


def blocks_the_loop(hub: Any) -> bool:
    """Whether the event loop, if there is one, stands still during a poll, as kombu 5.5's does.

    Then nothing is acknowledged meanwhile, and what waits in the worker shows no sign of life.
    """
    return hub is not None and not hasattr(get_client(hub), "_multi")


def guard(connection: Any) -> Any:
    """Make a kombu connection's polls harmless when they fail; safe to repeat."""
    if "_on_list_ready" in vars(connection):
        return connection
    connection._on_list_ready = _guarded(connection._on_list_ready)  # noqa: SLF001
    for name in _ATTRIBUTE_LISTS:
        wanted = getattr(connection, name, None)
        if wanted and not {_SENT, "All", "ALL"} & set(wanted):
            setattr(connection, name, [*wanted, _SENT])
    return connection


def _guarded(on_list_ready: Callable[..., Any]) -> Callable[..., Any]:
    def on_ready(parent: Any, markers: Any, operation: str, response: Any) -> Any:
        try:
            answer = on_list_ready(parent, markers, operation, response)
        except Exception:
            body = response.read() or b""
            if not any(word in body for word in _PASSING):
                raise
            logger.warning("poll refused by SQS: %s", body[:300].decode(errors="replace"))
            return NOT_SERVED
        if isinstance(answer, list):  # kombu's word for a timeout and for an error of the server
            return NOT_SERVED
        raw = response.response
        date = raw.headers.get(_DATE) or raw.request.headers.get(_DATE)
        return {**(answer or {}), _DATE: date}

    return on_ready
