"""One look at a channel's lists: the script that takes a message, and its reply."""

from __future__ import annotations

import logging
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kombu.utils.encoding import bytes_to_str
from redis.exceptions import NoScriptError, ResponseError

from celery_lease.brokers.redis.arrivals import Arrivals
from celery_lease.brokers.redis.sweeps import ARRIVAL

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from celery_lease.brokers.redis.driver import RedisDriver
    from celery_lease.brokers.redis.waiting import Stance
    from celery_lease.core.clock import Clock

logger = logging.getLogger(__name__)

#: Beginning of the script's error for a queue's key that is not a list.
WRONG_KEY = "WRONGTYPE key "


@dataclass(frozen=True, slots=True)
class Seen:
    """The result of a look."""

    popped: tuple[bytes, bytes] | None = None  #: the list's name and the message's text
    watched: tuple[int, ...] = ()  #: numbers of the queues that the channel watches
    wrong: int = 0  #: existing keys that are not lists


class Looks:
    """Builds a channel's looks and reads their replies. For the consuming thread."""

    def __init__(self, channel: Any, driver: RedisDriver, clock: Clock) -> None:
        self.tag = ""  #: of the record of the message at hand, or the next one
        self.claims = Arrivals(clock)
        self._busy = False  # the last look found a message
        self._channel = channel
        self._driver = driver
        self._known = False  # the server has the script
        self._logged: set[str] = set()  # errors that were logged

    def keys(self, queues: Sequence[str]) -> dict[str, str]:
        """Return the full names of the lists of *queues*, each with its queue, in their order."""
        channel = self._channel
        return {
            channel.global_keyprefix + channel._q_for_pri(queue, step): queue  # noqa: SLF001
            for step in channel.priority_steps
            for queue in queues
        }

    def command(self, queues: Sequence[str], stance: Stance | None = None) -> tuple[Any, ...]:
        self.tag = f"arrival#{uuid.uuid4().hex}"
        expects = self._busy or (stance is not None and stance.expects)
        claims = self.claims.args(expects=expects)
        return self._driver.arrive(
            self.tag, ARRIVAL, self.keys(queues), by_name=self._known, stance=stance, claims=claims
        )

    def reply(self, parse: Callable[[str], Any]) -> Seen | None:
        """Read the reply; None if the server lacks the script: look again."""
        self._busy = False
        try:
            reply = parse("BRPOP")
        except NoScriptError:
            self.claims.answered()
            self._known = False
            return None
        except ResponseError as exc:
            self.claims.answered()
            if not str(exc).startswith(WRONG_KEY):
                raise
            self._log_once(str(exc))
            return Seen()
        self.claims.answered(*map(bytes_to_str, (reply or ())[2:]))
        self._known = True
        if not reply:
            return Seen()
        if reply[0]:
            self._busy = True
            return Seen(popped=(reply[0], reply[1]))
        numbers, wrong, error = bytes_to_str(reply[1]).split("\n", 2)
        if error:
            self._log_once(error)
        return Seen(watched=tuple(map(int, numbers.split())), wrong=int(wrong))

    def _log_once(self, text: str) -> None:
        if text not in self._logged:
            self._logged.add(text)
            logger.error("queue skipped, the others go on: %s", text)
