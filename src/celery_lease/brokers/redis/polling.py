"""Polls a channel's queues, where the server does not notify it of messages.

Two commands, a wait of a moment and a look, are sent at once. The wait is at a list into which
other scripts push to end it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from celery_lease.brokers.redis.looking import Looks

#: Shortest and longest pause between two looks at empty lists, in seconds.
SHORTEST, LONGEST = 0.004, 0.05


class Polling:
    """The requests of one channel. For the consuming thread.

    The pause before empty lists are read again becomes longer each time. A busy queue is read
    without a pause; an idle worker asks at most 20 times a second. An idle server ends a pause at
    the next tick of its clock, of 100 ms by default.
    """

    def __init__(self, looks: Looks, bell: str) -> None:
        self._looks, self._bell = looks, bell
        self._pause = 0.0  # seconds
        self.is_waiting = False  #: the request under way waits first

    def ask(self, queues: Sequence[str]) -> tuple[list[tuple[Any, ...]], float]:
        """Return the commands to be sent, and for how many seconds the server may wait."""
        commands = [self._looks.command(queues)]
        self.is_waiting = self._pause > 0
        if self.is_waiting:
            commands.insert(0, ("BLPOP", self._bell, self._pause))
        return commands, self._pause

    def answer(self, parse: Callable[[str], Any], _: float) -> tuple[bytes, bytes] | None:
        """Read the replies, by the name of each command; return the list and text of a message."""
        if self.is_waiting:
            parse("BLPOP")
        seen = self._looks.reply(parse)
        if seen is None:
            return None
        self._pause = 0.0 if seen.popped else min(max(2 * self._pause, SHORTEST), LONGEST)
        return seen.popped
