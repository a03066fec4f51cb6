"""An application's own use of a broker, beside its leases, for the check of permissions."""

from __future__ import annotations

from dataclasses import dataclass

#: An exchange and a routing key.
Topic = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """Names as in kombu, without prefixes."""

    queues: tuple[str, ...] = ()  #: consumed
    others: tuple[str, ...] = ()  #: only published to, such as dead-letter queues
    patterns: tuple[str, ...] = ()  #: of queues that are named when they are needed
    published: tuple[Topic, ...] = ()  #: to fanout exchanges
    followed: tuple[Topic, ...] = ()  #: of fanout exchanges
    keys: bool = False  #: tasks have exclusive keys
    by_hand: bool = False  #: the commands of ``celery lease`` are used, too
