"""Checks that the server has the queues and exchanges as this app declares them.

Nothing is created: what is missing at the server is not declared. To declare what exists changes
nothing, and the server refuses what differs.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from amqp.exceptions import AccessRefused, ChannelError, NotFound, PreconditionFailed

from celery_lease.core.findings import Examined, Finding, error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


CHECK = "rabbitmq.declared"

_DIFFERS = re.compile(
    r"inequivalent arg '(?P<arg>.+?)' for .+?: received (?P<ours>.+) but current is (?P<theirs>.+)"
)


def check(case: Examined) -> Iterator[Finding]:
    """Yield a finding for each queue or exchange that a worker of this app cannot declare."""
    seen = set()
    for name in case.queues:
        queue = case.app.amqp.queues.get(name)
        if queue is None or queue.no_declare:
            continue
        exchange = queue.exchange
        if exchange and exchange.name not in seen and not exchange.no_declare:
            seen.add(exchange.name)
            yield from _finding(case, "exchange", exchange.name, exchange, "declare")
        yield from _finding(case, "queue", name, queue, "queue_declare")


def _finding(case: Examined, kind: str, name: str, entity: Any, declare: str) -> Iterator[Finding]:
    refused = _refusal(case.channel.connection.channel, entity, declare)
    if isinstance(refused, PreconditionFailed):
        yield error(
            CHECK,
            f"{kind} {name} is declared otherwise at the server: {_difference(refused)}",
            "A worker that declares it exits at its start: 406 PRECONDITION_FAILED.",
            f"Declare it in task_queues as it is at the server, or under another name; or stop its "
            f"users, empty it and delete it at the server{_deletion(kind, name)}: the next worker "
            "declares it anew. The server names one difference at a time.",
        )
    elif isinstance(refused, AccessRefused):
        yield error(
            CHECK,
            f"{kind} {name} cannot be declared: {refused.reply_text}",
            "A worker that declares it exits at its start: 403 ACCESS_REFUSED.",
            "Let the user configure, write and read it: rabbitmqctl set_permissions.",
        )


def _refusal(connect: Callable[[], Any], entity: Any, declare: str) -> ChannelError | None:
    """Return the server's refusal of what exists there; None: it agrees, or has none.

    A refusal closes the channel.
    """
    for passive in (True, False):
        channel = connect()
        try:
            getattr(entity.bind(channel), declare)(passive=passive)
        except NotFound:
            return None
        except ChannelError as exc:
            return exc
        channel.close()
    return None


def _difference(refused: PreconditionFailed) -> str:
    found = _DIFFERS.search(str(refused.reply_text))
    if found is None:
        return str(refused.reply_text)
    return f"{found['arg']} is {found['theirs']} there, and {found['ours']} in this app"


def _deletion(kind: str, name: str) -> str:
    return f" (rabbitmqctl delete_queue {name})" if kind == "queue" else ""
