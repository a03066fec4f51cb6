"""The requests of a channel that is notified of messages, and their replies, step by step.

:class:`~celery_lease.brokers.redis.waiting.Waiting` decides which step is next.

If the server does not answer a call that ends a wait or passes a role on, no other such call is
made before it has answered a look: a silent server costs one timeout, not several.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from kombu.utils.encoding import bytes_to_str
from redis.exceptions import ResponseError

from celery_lease.brokers.redis.waiting import LINE, Step, Waiting
from celery_lease.brokers.redis.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from celery_lease.brokers.redis.driver import RedisDriver
    from celery_lease.brokers.redis.looking import Looks

Request = tuple[list[tuple[Any, ...]], float]


class Standing:
    """Asks for one channel. For the consuming thread."""

    def __init__(
        self, channel: Any, driver: RedisDriver, looks: Looks, on_change: Callable[[], None]
    ) -> None:
        self._channel, self._driver, self._looks = channel, driver, looks
        self._name = uuid.uuid4().hex
        self._on_change = on_change
        self._waiting = Waiting()
        self._watch: Watch | None = None
        self._step = Step.REST  # of the request under way
        self._places: list[str] = []  # the keys of its roles that it tracks
        self._answers = True  # the server did, at the last call on another connection

    @property
    def is_waiting(self) -> bool:
        """Whether the request under way waits at the server."""
        return self._step is Step.STAND

    def ask(self, queues: Sequence[str], now: float) -> Request:
        """Return the commands to be sent, or none, and for how many seconds the server may wait.

        Raises:
            Refused: The server does not notify of messages.
            redis.RedisError, OSError: The channel's connection failed.
        """
        waiting = self._waiting
        self._check_watch()
        self._step = waiting.next(queues, now)
        if self._step is Step.LOOK:
            return [self._looks.command(queues, waiting.stance(self._name, queues, now))], 0.0
        if self._step is Step.REST:
            return [], 0.0
        if self._watch is None:
            self._watch = Watch(self._channel, self._driver, self._changed)
        if self._step is Step.WATCH:
            waiting.begins_to_hear()
            # The keys of its roles, too: it is notified when another channel takes one over.
            self._places = [self._driver.keys.watcher_of(each) for each in waiting.watched]
            lists = self._looks.keys(waiting.watched)
            return self._watch.track([*lists, *self._places]), 0.0
        bells = [self._driver.keys.bell_of(each) for each in queues if each not in waiting.watched]
        return [("BLPOP", *bells, LINE)], LINE

    def answer(self, parse: Callable[[str], Any], now: float) -> tuple[bytes, bytes] | None:
        """Read the replies, by the name of each command; return the list and text of a message."""
        if self._step is Step.LOOK:
            return self._take_in(parse, now)
        if self._step is Step.WATCH:
            self._hear(parse)
            return None
        rung = parse("BLPOP")
        bell = bytes_to_str(rung[0]) if rung else ""
        self._waiting.rang(bell.removeprefix(self._driver.keys.bell_of("")))
        return None

    def end_wait(self) -> None:
        """End the wait of the request under way at the server."""
        if self.is_waiting and self._watch is not None and self._answers:
            self._answers = self._driver.unblock(self._watch.asking_id)

    def leave(self, queues: Collection[str] = ()) -> None:
        """Give up the roles for all but *queues*, and wake the next channels."""
        if (left := self._waiting.leave(queues)) and self._answers:
            self._answers = self._driver.leave(self._name, left)

    def hint(self) -> None:
        """Look next, if this channel watches something."""
        self._waiting.changed()

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None
            self._waiting.changed()

    def _check_watch(self) -> None:
        """Close a watch connection that belongs to a former connection of the channel."""
        if self._watch is not None and not self._watch.serves(self._channel.client.connection):
            self.close()

    def _take_in(self, parse: Callable[[str], Any], now: float) -> tuple[bytes, bytes] | None:
        seen = self._looks.reply(parse)
        self._answers = True
        if seen is None:
            return None
        if seen.popped is None:
            self._waiting.found_nothing(seen.watched, now, seen.wrong)
            return None
        heard = self._waiting.hears
        if self._waiting.found() and heard:  # without a notification
            self.close()
        return seen.popped

    def _hear(self, parse: Callable[[str], Any]) -> None:
        try:
            parse("CLIENT CACHING")
        except ResponseError:  # the server does not track for this connection any more
            parse("EXISTS")
            self.close()
        else:
            self._waiting.hears_already(int(parse("EXISTS")) - len(self._places))

    def _changed(self) -> None:
        self._waiting.changed()
        if self._waiting.notified:
            self._on_change()
