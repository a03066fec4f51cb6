"""Calls of a driver's server: scripts by their names, and what their replies mean."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, TypeVar

from kombu.utils.encoding import bytes_to_str
from redis.exceptions import NoScriptError, ResponseError

from celery_lease.brokers.redis import scripts
from celery_lease.brokers.redis.client import Lines, address, pool_like
from celery_lease.brokers.redis.sweeps import PIECE
from celery_lease.core.delivery import Answer, ask_in_batches
from celery_lease.core.words import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import redis

T = TypeVar("T")

logger = logging.getLogger(__name__)

_ANSWERS = {1: Answer.HELD, 0: Answer.LOST}


class Server:
    """The server of one driver. Thread-safe; not for use across a fork."""

    def __init__(self, channel: Any) -> None:
        """Prepare for the server of a kombu *channel*; nothing is sent."""
        self._connect(channel)

    def _connect(self, channel: Any) -> None:
        self._address = address(channel)
        self._lines = Lines(pool_like(channel))
        self._scripts = scripts.register(self._lines.client)

    def follow(self, channel: Any) -> None:
        """Use the server of a new *channel*, if it is another one."""
        if address(channel) != self._address:
            logger.warning("leases follow the connection to another broker")
            self._lines.close()
            self._connect(channel)

    def call(self, command: Callable[[redis.Redis], T]) -> T:
        """Run a *command* with a client.

        Raises:
            redis.RedisError: It failed, or was not answered in time.
        """
        return self._lines.call(command)

    def run(self, name: str, keys: list[str], args: list[Any]) -> Any:
        """Run a script, and return its reply.

        Raises:
            redis.RedisError: There was no answer; it may or may not have been done.
        """
        return self._lines.call(lambda client: self._scripts[name](keys, args, client))

    def run_all(
        self, name: str, keys: list[str], pieces: Sequence[list[Any]], timeout: float
    ) -> list[Any]:
        """Run a script for each of *pieces* in one round trip, and return the replies.

        The server serves others between two of them.

        Raises:
            redis.RedisError: One had no answer; any of them may or may not have been done.
        """
        script = self._scripts[name]
        calls = [("EVALSHA", script.sha, len(keys), *keys, *each) for each in pieces]

        def command(client: redis.Redis) -> list[Any]:
            replies = _replies(client, calls)
            if any(isinstance(each, NoScriptError) for each in replies):
                client.script_load(script.script)
                replies = _replies(client, calls)
            for each in replies:
                if isinstance(each, Exception):
                    raise each
            return replies

        return self._lines.call_within(command, timeout)

    def ask_at_once(
        self,
        name: str,
        keys: list[str],
        pieces: Sequence[list[Any]],
        questions: int,
        timeout: float,
    ) -> list[Answer]:
        """Run a script for each of *pieces* in one round trip; unknown without all replies."""
        try:
            replies = self.run_all(name, keys, pieces, timeout)
        except Exception as exc:  # noqa: BLE001  (as in ask)
            return _unanswered(name, questions, exc)
        return [_ANSWERS[int(reply)] for each in replies for reply in bytes_to_str(each)]

    def ask(self, name: str, keys: list[str], args: list[Any], questions: int) -> list[Answer]:
        """Run a script that answers as many questions about leases; unknown without a reply."""
        if not questions:
            return []
        try:
            replies = self.run(name, keys, args)
        except Exception as exc:  # noqa: BLE001  (a broken connection raises many kinds of errors)
            return _unanswered(name, questions, exc)
        if isinstance(replies, int):
            replies = [replies]
        return [_ANSWERS[int(reply)] for reply in replies]

    def ask_in_pieces(
        self, name: str, keys: list[str], how: list[str], tags: Sequence[str]
    ) -> list[Answer]:
        """Run a script for some messages at a time; stop at the first call without an answer."""
        return ask_in_batches(
            tags, PIECE, lambda piece: self.ask(name, keys, [*how, *piece], len(piece))
        )

    def command(
        self, name: str, keys: Sequence[str], args: Sequence[Any], *, by_name: bool
    ) -> tuple[Any, ...]:
        """Return the command that runs a script, for a connection that is not ours.

        *by_name*: the server has the script already.
        """
        script = self._scripts[name]
        how = ("EVALSHA", script.sha) if by_name else ("EVAL", script.script)
        return (*how, len(keys), *keys, *args)

    def close(self) -> None:
        self._lines.close()


def _unanswered(name: str, questions: int, exc: Exception) -> list[Answer]:
    logger.warning("%s of %s not answered: %s", name, counted(questions, "lease"), exc)
    return [Answer.UNKNOWN] * questions


def _replies(client: redis.Redis, calls: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Send *calls* together on a *client*'s own connection; return replies and their errors.

    A pipeline of the client library would take a connection from the pool, without the bound.
    """
    connection: Any = client.connection
    replies: list[Any] = []
    try:
        connection.send_packed_command(connection.pack_commands(calls))
        while len(replies) < len(calls):
            try:
                replies.append(connection.read_response())
            except ResponseError as exc:
                replies.append(exc)
    finally:
        if len(replies) < len(calls):  # a later call must not read the rest
            connection.disconnect()
    return replies
