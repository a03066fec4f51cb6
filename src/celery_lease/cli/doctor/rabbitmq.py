"""What RabbitMQ leaves of a lease: its consumer timeout, and what it counts.

The consumer timeout cannot be asked for over AMQP. What is judged here is what a worker of this
app would take it for; the remedy says how to ask the server.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from celery_lease.brokers.amqp.limits import ARGUMENT, DEFAULT, OPTION, Limit, consumer_timeout
from celery_lease.cli.doctor.findings import Finding, error, notice, ok, warning
from celery_lease.core.policy import plain

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from celery_lease.cli.doctor.case import Case

ASK = "rabbitmqctl eval 'application:get_env(rabbit, consumer_timeout).' tells the server's, in ms."


def check(case: Case) -> Iterator[Finding]:
    """Yield what is to be said of the server and the queues."""
    properties: Mapping[str, Any] = case.channel.connection.server_properties
    yield ok("rabbitmq.version", f"the server is RabbitMQ {properties.get('version', '?')}")
    if not case.app.conf.broker_heartbeat:
        yield warning(
            "rabbitmq.heartbeat",
            "broker_heartbeat is off",
            "The server does not notice that a worker's host is gone: its messages stay held.",
            "Set broker_heartbeat, 120 by default.",
        )
    for name in case.queues:
        yield from _queue(case, name)


def _queue(case: Case, name: str) -> Iterator[Finding]:
    known = case.app.amqp.queues.get(name)
    arguments = dict(getattr(known, "queue_arguments", None) or {})
    timeout = consumer_timeout(
        case.app.conf.broker_transport_options or {},
        (dict(getattr(known, "consumer_arguments", None) or {}), arguments),
    )
    yield from _timeout(case, name, timeout)
    yield _deliveries(name, arguments)


def _timeout(case: Case, queue: str, timeout: float) -> Iterator[Finding]:
    limit = Limit(queue, timeout).seconds
    said = f"(assumed: {OPTION} is not set)" if timeout == DEFAULT else "as the app says"
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
            "RabbitMQ closes the channel of who keeps a message for longer, under all tasks of "
            "the worker. Leases end before that, so these cannot be extended even once.",
            _raise(timeout),
        )
    elif case.longest > limit:
        yield warning(
            "rabbitmq.consumer_timeout",
            f"{what}; lease_max_duration is {plain(case.longest)} s",
            "A task that takes longer loses its lease however often it beats, and is run again; a "
            "longer countdown makes its message go back and forth.",
            _raise(timeout),
        )
    else:
        yield ok("rabbitmq.consumer_timeout", what)


def _raise(timeout: float) -> str:
    return (
        f"Raise the server's consumer_timeout (or the queue's {ARGUMENT}) and say so in "
        f"broker_transport_options['{OPTION}'] (seconds, now {plain(timeout)}), or lower "
        f"lease_max_duration. {ASK}"
    )


def _deliveries(name: str, arguments: Mapping[str, Any]) -> Finding:
    if arguments.get("x-queue-type") != "quorum":
        return notice(
            "rabbitmq.deliveries",
            f"queue {name} is declared as a classic queue",
            "It counts no deliveries, and lease_max_deliveries does nothing on RabbitMQ: a "
            "message that kills its worker comes back without end.",
            "Use a quorum queue with x-delivery-limit and a dead-letter exchange.",
        )
    if "x-dead-letter-exchange" in arguments:
        limit = arguments.get("x-delivery-limit", "the server's default")
        return ok("rabbitmq.deliveries", f"queue {name}: quorum, delivery limit {limit}")
    return warning(
        "rabbitmq.deliveries",
        f"quorum queue {name} is declared without a dead-letter exchange",
        "At its delivery limit (20 unless set, since RabbitMQ 4.0) a message is dropped without a "
        "trace. Each orderly return may spend one delivery.",
        "Give the queue x-dead-letter-exchange, here or by a policy of the server.",
    )
