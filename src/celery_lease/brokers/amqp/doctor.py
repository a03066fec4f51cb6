"""Checks of RabbitMQ: its consumer timeout, its counts of deliveries, and declarations.

The consumer timeout cannot be read over AMQP. These checks use the value that a worker of this app
assumes; the remedy shows how to read it at the server.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from celery_lease.brokers.amqp import declared
from celery_lease.brokers.amqp.limits import (
    ARGUMENT,
    LIMIT,
    OPTION,
    TYPE,
    Limit,
    consumer_timeout,
    faulty_option,
    version_of,
)
from celery_lease.core.findings import Examined, Finding, error, notice, ok, warning
from celery_lease.core.words import plain

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


ASK = "rabbitmqctl eval 'application:get_env(rabbit, consumer_timeout).' shows the server's, in ms."


def clock(case: Examined) -> None:
    """Return None: the server does not show its time."""
    del case


def check(case: Examined) -> Iterator[Finding]:
    """Yield the findings about the server and the queues."""
    yield ok("rabbitmq.version", f"the server is RabbitMQ {version_of(case.channel) or '?'}")
    if not case.app.conf.broker_heartbeat:
        yield warning(
            "rabbitmq.heartbeat",
            "broker_heartbeat is off",
            "The server does not notice that a worker's host is gone: its messages stay held.",
            "Set broker_heartbeat, 120 by default.",
        )
    if fault := faulty_option(case.app.conf.broker_transport_options or {}):
        what, remedy = fault
        why = "A worker with leases does not start: how long it may keep a message is not known."
        yield error("rabbitmq.consumer_timeout", what, why, f"{remedy}.")
        return
    for name in case.queues:
        yield from _queue(case, name)
    yield from _plain_tasks(case)
    yield from declared.check(case)


def _queue(case: Examined, name: str) -> Iterator[Finding]:
    known = case.app.amqp.queues.get(name)
    arguments = dict(getattr(known, "queue_arguments", None) or {})
    options = case.app.conf.broker_transport_options or {}
    consumed = (dict(getattr(known, "consumer_arguments", None) or {}), arguments)
    is_said = OPTION in options or any(ARGUMENT in each for each in consumed)
    said = "as the app says" if is_said else f"(assumed: {OPTION} is not set)"
    yield from _timeout(
        case, name, consumer_timeout(options, consumed, version_of(case.channel)), said
    )
    yield _undeclared(name) if known is None else _deliveries(case, name, arguments)


def _timeout(case: Examined, queue: str, timeout: float, said: str) -> Iterator[Finding]:
    limit = Limit(queue, timeout).seconds
    if math.isinf(timeout):
        yield ok("rabbitmq.consumer_timeout", f"queue {queue}: no consumer timeout, {said}")
        return
    what = f"queue {queue}: consumer timeout {plain(timeout)} s {said}, so leases of "
    what += f"{plain(limit)} s at most"
    cut = {name: each for name, each in case.policies.items() if each.extension > limit}
    if cut:
        yield error(
            "rabbitmq.consumer_timeout",
            f"{what}; lease_extension is longer for {', '.join(cut)}",
            "RabbitMQ closes the channel of a consumer that keeps a message for longer, under all "
            "tasks of the worker. Leases end before that, so these cannot be extended even once.",
            _raise(timeout, "lease_extension"),
        )
    elif case.longest > limit:
        yield warning(
            "rabbitmq.consumer_timeout",
            f"{what}; lease_max_duration is {plain(case.longest)} s",
            "A task that takes longer loses its lease however often it beats, and is run again. A "
            "message with a longer countdown is requeued and received again until its ETA.",
            _raise(timeout, "lease_max_duration"),
        )
    else:
        yield ok("rabbitmq.consumer_timeout", what)


def _plain_tasks(case: Examined) -> Iterator[Finding]:
    """Yield the plain tasks that may keep a message for longer than RabbitMQ waits."""
    options = case.app.conf.broker_transport_options or {}
    queues = [case.app.amqp.queues.get(name) for name in case.queues]
    arguments = [dict(getattr(each, "queue_arguments", None) or {}) for each in queues]
    timeouts = (consumer_timeout(options, [each], version_of(case.channel)) for each in arguments)
    timeout = min(timeouts, default=math.inf)
    late = {
        name: task.time_limit or case.app.conf.task_time_limit
        for name, task in case.plain_tasks.items()
        if task.acks_late
    }
    long = [name for name, limit in late.items() if not limit or limit > timeout]
    if long and not math.isinf(timeout):
        yield notice(
            "rabbitmq.plain_tasks",
            f"no time_limit within the consumer timeout of {plain(timeout)} s: {', '.join(long)}",
            "These acknowledge late and have no lease. If one takes longer, its message is "
            "requeued while it runs, and a second run starts beside the first.",
            "Give them a time_limit, a lease that is long enough, or acks_late=False; or raise the "
            f"server's {OPTION}.",
        )


def _raise(timeout: float, setting: str) -> str:
    return (
        f"Raise the server's consumer_timeout (or the queue's {ARGUMENT}) and say so in "
        f"broker_transport_options['{OPTION}'] (seconds, now {plain(timeout)}), or lower "
        f"{setting}. {ASK}"
    )


def _undeclared(name: str) -> Finding:
    return notice(
        "rabbitmq.deliveries",
        f"queue {name} is not in this app's task_queues: whether it counts deliveries is not known",
        "Workers consume it as they have declared it.",
        "Name it in task_queues, or run the doctor with the app that does.",
    )


def _deliveries(case: Examined, name: str, arguments: Mapping[str, Any]) -> Finding:
    if arguments.get(TYPE) != "quorum":
        return notice(
            "rabbitmq.deliveries",
            f"queue {name} is declared as a classic queue",
            "It counts no deliveries. A worker dead-letters what it has seen lost "
            "lease_max_deliveries times. One that kills whole workers comes back without end.",
            "Use a quorum queue with x-delivery-limit and a dead-letter exchange.",
        )
    if "x-dead-letter-exchange" in arguments:
        limit = arguments.get(LIMIT, "the server's default")
        what = f"queue {name}: quorum, delivery limit {limit}"
        wanted = max((each.max_deliveries for each in case.leases), default=0)
        if isinstance(limit, int) and 0 <= limit < wanted:
            return warning(
                "rabbitmq.deliveries",
                f"{what}; lease_max_deliveries is {wanted}",
                "The server's limit comes first: the message goes to the exchange, and no worker "
                "fails its task.",
                f"Raise {LIMIT} to {wanted} or more, or lower lease_max_deliveries.",
            )
        return ok("rabbitmq.deliveries", what)
    return warning(
        "rabbitmq.deliveries",
        f"quorum queue {name} is declared without a dead-letter exchange",
        "At its delivery limit (20 unless set, since RabbitMQ 4.0) a message is dropped without a "
        "trace. Each orderly return may spend one delivery.",
        "Give the queue x-dead-letter-exchange, here or by a policy of the server.",
    )
