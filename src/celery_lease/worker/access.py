"""Checks the permissions of a worker with leases at its broker and its result backend.

It collects the names that an application uses there; the drivers know which permissions they need.
"""

from __future__ import annotations

import logging
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from celery.exceptions import WorkerShutdown
from celery.platforms import EX_FAILURE
from kombu.utils.encoding import bytes_to_str

from celery_lease import brokers
from celery_lease.brokers.use import Topic, Use
from celery_lease.task import keys
from celery_lease.task.checkpoints import stores
from celery_lease.task.task import LeasedTask
from celery_lease.worker import compat

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery import Celery
    from celery.worker.consumer import Consumer

    from celery_lease.settings import Settings

logger = logging.getLogger(__name__)


def check_platform() -> None:
    """Check that this platform can share memory with task processes and end them.

    Raises:
        WorkerShutdown: It runs on Windows.
    """
    if sys.platform == "win32":
        remedy = (
            "Run it on Linux or macOS, also in WSL or a container, or set lease_enabled = False"
        )
        refuse([("no worker holds leases on Windows", remedy)])


def check(consumer: Consumer, channel: Any, loaded: Settings) -> None:
    """Check that a worker has all permissions that it needs, at its first connection.

    Raises:
        WorkerShutdown: It has not; the log names the missing ones.
    """
    sends, gossips = compat.events_used(consumer)
    refuse(lacking(consumer.app, loaded, channel, sends_events=sends, gossips=gossips))


def refuse(found: Sequence[tuple[str, str]]) -> None:
    """Stop a worker for faults found at its broker, each with a remedy; with none do nothing.

    Raises:
        WorkerShutdown: There is at least one fault.
    """
    for each in found:
        logger.critical("worker not started: %s", ". ".join(each))
    if found:
        raise WorkerShutdown(EX_FAILURE) from None


def lacking(
    app: Celery,
    loaded: Settings,
    channel: Any,
    *,
    sends_events: bool = True,
    gossips: bool = True,
    by_hand: bool = False,
) -> list[tuple[str, str]]:
    """Return the missing permissions at broker and result backend, each with a remedy.

    Raises:
        Exception: The broker did not answer; the error is its client library's.
    """
    use = _use(app, loaded, sends_events=sends_events, gossips=gossips, by_hand=by_hand)
    driver = brokers.kind_of(channel.connection.client)
    found = [driver.lacking(channel, use), _lacking_at_results(app)]
    return [each for each in found if each is not None]


def looked_up(consumer: Consumer, loaded: Settings) -> list[tuple[str, str]]:
    """Return the missing permissions by a new connection; none if they cannot be looked up."""
    sends, gossips = compat.events_used(consumer)
    try:
        with consumer.app.connection_for_read() as connection:
            channel = connection.channel()
            return lacking(consumer.app, loaded, channel, sends_events=sends, gossips=gossips)
    except Exception as exc:  # noqa: BLE001  (the caller reports its own error in any case)
        logger.debug("permissions not looked up: %s", exc)
        return []


def _use(app: Celery, loaded: Settings, *, sends_events: bool, gossips: bool, by_hand: bool) -> Use:
    consumed = app.amqp.queues.consume_from or {}
    queues = tuple(map(str, consumed))
    events = app.conf.event_exchange
    copied = tuple(
        (queue.exchange.name, queue.routing_key or "")
        for queue in consumed.values()
        if queue.exchange.type == "fanout"
    )
    published: list[Topic] = [*copied]
    followed: list[Topic] = [*copied]
    patterns = []
    if app.conf.worker_enable_remote_control:
        mailbox: Any = app.control.mailbox  # type: ignore[attr-defined]
        published.append((mailbox.exchange.name, ""))
        followed.append((mailbox.exchange.name, ""))
        patterns += [f"*.{mailbox.exchange.name}*"]
    if sends_events:
        published.append((events, "*"))
    if gossips:
        followed.append((events, "worker.*"))
    if gossips or by_hand:
        patterns.append(f"{app.conf.event_queue_prefix}.*")
    return Use(
        queues=queues,
        others=tuple(dict.fromkeys(map(loaded.dead_letter_queue_of, queues))),
        patterns=tuple(patterns),
        published=tuple(published),
        followed=tuple(followed),
        keys=any(
            isinstance(task, LeasedTask) and keys.rule_of(type(task)) is not None
            for task in list(app.tasks.values())
        ),
        by_hand=by_hand,
    )


def _lacking_at_results(app: Celery) -> tuple[str, str] | None:
    """Check a result backend on Redis; one that does not answer is left to Celery, which waits."""
    backend: Any = app.backend
    if not stores.on_redis(backend):
        return None
    import redis  # noqa: PLC0415  (not with every broker)

    from celery_lease.brokers.redis import client, permissions, rights  # noqa: PLC0415  (Redis only)

    prefixes = [bytes_to_str(each) for each in (backend.task_keyprefix, backend.group_keyprefix)]
    theirs = backend.client.connection_pool
    needed = rights.rights_at_results(theirs, *prefixes)
    try:
        return permissions.missing(client.pool_like(SimpleNamespace(pool=theirs)), needed)
    except (redis.ConnectionError, redis.TimeoutError) as exc:
        logger.debug("permissions at the result backend not looked up: %s", exc)
        return None
