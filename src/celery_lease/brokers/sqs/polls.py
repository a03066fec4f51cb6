"""Kombu's polls of SQS, with the facts that leases need, and with failures caught.

Kombu 5.7 takes a poll without an answer for an empty list where it needs a mapping, and the worker
ends; any other error ends it, too. Here a poll that SQS did not serve brings nothing, the log has
it once, and the next poll waits a little.

Uses of kombu internals, as read in 5.5.4 and 5.7.0: ``AsyncSQSConnection._on_list_ready`` and its
names for the attributes that a poll requests; ``_multi``, which only the non-blocking HTTP client
has; and the place of an answer's headers: with those of the request (curl), or with the answer
(urllib3).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from kombu.asynchronous.http import get_client

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

logger = logging.getLogger(__name__)

#: The result of a poll that was not served; distinguished from an empty one by identity.
NOT_SERVED: Mapping[str, Any] = {}

#: Errors, in the text of SQS's answer, that are temporary: the next poll may be served.
#: ``OverLimit``: the queue has 120,000 messages in flight. Kombu raises any other error, for the
#: operator.
_PASSING = (
    b"Throttl",
    b"OverLimit",
    b"InternalError",
    b"InternalFailure",
    b"ServiceUnavailable",
    b"ExpiredToken",
    b"RequestExpired",
)
#: Names of the list of attributes in kombu's versions, and the attributes that leases need besides.
_ATTRIBUTE_LISTS = ("message_system_attribute_names", "fetch_message_attributes")
_SENT, _RECEIVES = "SentTimestamp", "ApproximateReceiveCount"
#: Names of the same list in a call of the blocking client; all its versions know the latter.
_ATTRIBUTE_PARAMETERS = ("MessageSystemAttributeNames", "AttributeNames")
#: The key of an answer's date for :meth:`Poll.served`.
_DATE = "Date"


@dataclass(frozen=True, slots=True)
class Poll:
    """One call that receives messages."""

    asked_at: float  #: clock reading before it was sent
    served_at: int | None = None  #: when SQS answered, in seconds since 1970; None: unknown

    def served(self, response: Mapping[str, Any]) -> Poll:
        """Return this poll with the time of SQS's answer, if that is known."""
        try:
            served_at = int(parsedate_to_datetime(response[_DATE]).timestamp())
        except (KeyError, TypeError, ValueError):
            return self
        return Poll(self.asked_at, served_at)


def blocks_the_loop(hub: Any) -> bool:
    """Whether there is an event loop that stands still during a poll, as kombu 5.5's does.

    Then no message is acknowledged meanwhile, and reserved messages show no sign of life.
    """
    return hub is not None and not hasattr(get_client(hub), "_multi")


def guard(connection: Any) -> Any:
    """Catch the failures of a kombu connection's polls; safe to repeat."""
    if "_on_list_ready" in vars(connection):
        return connection
    connection._on_list_ready = _guarded(connection._on_list_ready)  # noqa: SLF001
    for name in _ATTRIBUTE_LISTS:
        wanted = getattr(connection, name, None)
        if wanted:
            setattr(connection, name, _with(wanted, _SENT))
    return connection


def watch(client: Any, served: Callable[[Mapping[str, Any]], None]) -> Any:
    """Make the polls of kombu's blocking client request the facts for tokens; safe to repeat.

    *served* is called with the headers of each answer. Kombu 5.5 requests no attributes at all.
    """
    if "celery_lease_watches" in vars(client):
        return client

    def ask(params: Mapping[str, Any], **_: Any) -> Mapping[str, Any]:
        name = next(
            (each for each in _ATTRIBUTE_PARAMETERS if each in params), _ATTRIBUTE_PARAMETERS[-1]
        )
        return {**params, name: _with(params.get(name) or [], _RECEIVES, _SENT)}

    def answered(parsed: Mapping[str, Any], **_: Any) -> None:
        headers = parsed.get("ResponseMetadata", {}).get("HTTPHeaders", {})
        served({_DATE: headers.get(_DATE.lower())})

    client.meta.events.register("provide-client-params.sqs.ReceiveMessage", ask)
    client.meta.events.register("after-call.sqs.ReceiveMessage", answered)
    client.celery_lease_watches = True
    return client


def _with(names: Sequence[str], *wanted: str) -> list[str]:
    """Return names of attributes with the *wanted* ones added, unless all are requested."""
    if {"All", "ALL"} & set(names):
        return [*names]
    return [*names, *(each for each in wanted if each not in names)]


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
        if isinstance(answer, list):  # kombu's result for a timeout and for a server's error
            return NOT_SERVED
        raw = response.response
        date = raw.headers.get(_DATE) or raw.request.headers.get(_DATE)
        return {**(answer or {}), _DATE: date}

    return on_ready
