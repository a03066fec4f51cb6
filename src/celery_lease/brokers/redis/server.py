"""Calls of a driver's server: scripts by their names, and what their replies mean."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, TypeVar

from celery_lease.brokers.redis import scripts
from celery_lease.brokers.redis.client import Lines, address, pool_like
from celery_lease.brokers.redis.sweeps import PIECE
from celery_lease.core.delivery import Answer
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

    def run(self, name: str, keys: list[str], args: list[Any], timeout: float | None = None) -> Any:
        """Run a script, and return its reply.

        Raises:
            redis.RedisError: There was no answer; it may or may not have been done.
        """

        def command(client: redis.Redis) -> Any:
            return self._scripts[name](keys=keys, args=args, client=client)

        if timeout is None:
            return self._lines.call(command)
        return self._lines.call_within(command, timeout)

    def ask(
        self,
        name: str,
        keys: list[str],
        args: list[Any],
        questions: int,
        timeout: float | None = None,
    ) -> list[Answer]:
        """Run a script that answers as many questions about leases; unknown without a reply."""
        if not questions:
            return []
        try:
            replies = self.run(name, keys, args, timeout)
        except Exception as exc:  # noqa: BLE001  (a broken connection raises many kinds of errors)
            logger.warning("%s of %s not answered: %s", name, counted(questions, "lease"), exc)
            return [Answer.UNKNOWN] * questions
        if isinstance(replies, bytes):
            replies = replies.decode()
        elif isinstance(replies, int):
            replies = [replies]
        return [_ANSWERS[int(reply)] for reply in replies]

    def ask_in_pieces(
        self, name: str, keys: list[str], how: list[str], tags: Sequence[str]
    ) -> list[Answer]:
        """Run a script for some messages at a time; stop at the first call without an answer."""
        answers: list[Answer] = []
        while len(answers) < len(tags) and Answer.UNKNOWN not in answers[-1:]:
            piece = tags[len(answers) : len(answers) + PIECE]
            answers += self.ask(name, keys, [*how, *piece], len(piece))
        return answers + [Answer.UNKNOWN] * (len(tags) - len(answers))

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
        """Close all connections."""
        self._lines.close()
