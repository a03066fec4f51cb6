"""A check for permissions that a user of the server lacks.

A server checks a command of a transaction against the user's ACL when it is queued. So all commands
are queued, and the connection is closed: none is ever run, and the check itself needs no right.
``ACL DRYRUN`` needs Redis 7 and is itself often forbidden, as ``CONFIG`` and a part of ``CLIENT``
are on managed servers; none of these is used.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import redis

from celery_lease.brokers.redis.client import close_pool, pool_like
from celery_lease.brokers.redis.rights import name_of, rights_at_broker, rights_for_notifications
from celery_lease.core.words import page

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery_lease.brokers.redis.rights import Command, Rights
    from celery_lease.brokers.use import Use

#: Part of a refusal by Redis 6.2 and 7 and Valkey, also within EXECABORT.
_REFUSAL = re.compile(r"no permissions? to (run|access)", re.IGNORECASE)


@dataclass(slots=True)
class Refused:
    """The commands, keys and channels that a server refused."""

    commands: set[str] = field(default_factory=set)
    keys: set[str] = field(default_factory=set)
    channels: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)

    def __bool__(self) -> bool:
        return bool(self.commands or self.keys or self.channels or self.unknown)

    def add(self, command: Command, exc: redis.ResponseError) -> None:
        """Record the error of a command, if it refuses a permission."""
        text = str(exc)
        if "unknown command" in text:
            self.unknown.add(name_of(command))
        elif not (found := _REFUSAL.search(text)):
            return
        elif found[1] == "run":
            self.commands.add(name_of(command))
        elif "channel" in text:
            self.channels.add(command[1])
        else:
            self.keys.add(command[1])

    def said(self) -> str:
        """Return the refusals as half a sentence."""
        parts = [
            f"{what} {', '.join(sorted(names))}"
            for what, names in (
                ("run", self.commands),
                ("use the keys", self.keys),
                ("use the channels", self.channels),
                ("run, as this server does not know it,", self.unknown),
            )
            if names
        ]
        return "; ".join(parts)


def lacking(channel: Any, use: Use) -> tuple[str, str] | None:
    """Return the missing permissions of a kombu *channel*'s user, and the remedy."""
    return missing(pool_like(channel), rights_at_broker(channel, use))


def lacking_for_notifications(channel: Any) -> tuple[str, str] | None:
    """Return the missing rights for notifications of messages, and the remedy."""
    return missing(pool_like(channel), rights_for_notifications(channel))


def missing(pool: redis.ConnectionPool, rights: Rights) -> tuple[str, str] | None:
    """Return the missing permissions of the connections of a *pool*, and the remedy.

    Raises:
        redis.RedisError: The server did not answer.
    """
    connection: Any = pool.make_connection()
    try:
        connection.connect()
        refused = _ask(connection, rights)
    except redis.exceptions.NoPermissionError as exc:  # for the first commands: SELECT, HELLO
        refused = Refused()
        refused.add(_named_in(exc), exc)
    finally:
        connection.disconnect()
        close_pool(pool)
    if not refused:
        return None
    return (
        f"{rights.whose} {rights.user} may not {refused.said()}",
        f"As an administrator of the server, run: {rights.line}",
    )


def unfit(exc: BaseException) -> tuple[str, str] | None:
    """Return the missing permission that an error names, and the remedy."""
    if not isinstance(exc, redis.exceptions.NoPermissionError):
        return None
    return (
        f"the broker's user lacks a permission: {exc}",
        f"Allow it the rights of a user that {page('brokers')} lists under Redis",
    )


def _named_in(exc: redis.ResponseError) -> Command:
    """Return the command that an error names."""
    found = re.search(r"'([^']+)'", str(exc))
    return (found[1].upper() if found else "SELECT",)


def _ask(connection: Any, rights: Rights) -> Refused:
    """Queue all commands in a transaction that is never executed.

    Outside of a transaction they would run, so its own commands are checked first.
    """
    refused = Refused()
    key = next(each[1] for each in rights.commands if each[0] == "HSET")
    last = _exchange(connection, [("WATCH", key), ("MULTI",), ("EXEC",), ("MULTI",)], refused)
    is_begun = not isinstance(last, redis.ResponseError) or "nested" in str(last)
    if is_begun:
        _exchange(connection, rights.commands, refused)
    return refused


def _exchange(connection: Any, commands: Sequence[Command], refused: Refused) -> Any:
    """Send commands at once, record the refusals, and return the last reply."""
    connection.send_packed_command(connection.pack_commands(commands))
    reply = None
    for command in commands:
        reply = _reply(connection)
        if isinstance(reply, redis.ResponseError):
            refused.add(command, reply)
    return reply


def _reply(connection: Any) -> Any:
    try:
        return connection.read_response()
    except redis.ResponseError as exc:
        return exc
