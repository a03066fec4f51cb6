"""Decides which signals a group's processes get, and when; it touches no process.

To stop, the group stops one level of priority after the other, the lowest first, each when the one
before has ended. A level that does not end in time gets SIGQUIT (Celery's cold shutdown, which
requeues the messages that it still can) and then SIGKILL, so that the next level gets its turn in
any case.

=========================  ==========================================================
event                      what follows
=========================  ==========================================================
SIGTERM, SIGINT            passed on level by level
a second one, or SIGQUIT   passed on to all at once
any other signal           passed on to all at once, stops nothing
a process ends, unasked    the others are stopped as by SIGTERM
a process ends, asked      when its level is empty, the next one gets the signal
=========================  ==========================================================
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from math import inf
from signal import SIGINT, SIGTERM, Signals
from typing import TYPE_CHECKING

if sys.platform != "win32":  # on Windows only the doctor uses it, to compute times
    from signal import SIGKILL, SIGQUIT

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

#: The environment variable with a worker's name in the group, also for its ``celeryconfig``.
NAME_VARIABLE = "LEASE_GROUP_MEMBER"
#: Seconds that a level has between SIGQUIT and SIGKILL, and between one SIGKILL and the next.
LAST_WORDS = 5.0
#: Seconds beyond ``lease_shutdown_timeout``, or the longest poll, for a worker to settle and exit.
MARGIN = 5.0


def longest_stop(timeout: float, levels: int = 1) -> float:
    """Return the most seconds that stopping takes.

    Args:
        timeout: Seconds that each level has to end after its signal.
        levels: The number of different priorities.
    """
    return levels * (timeout + LAST_WORDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One process of a group."""

    name: str
    command: tuple[str, ...]  #: the first is the path of a program
    priority: int = 0  #: lower ones are stopped first, equal ones at the same time


@dataclass(frozen=True, slots=True)
class Order:
    """One signal for one process."""

    name: str
    number: Signals


class Plan:
    """The state of one group. Times are seconds on any one clock.

    Attributes:
        living: The members that have not ended, by name.
        code: The highest exit code of those that have.
    """

    def __init__(self, members: Iterable[Member], timeout: float) -> None:
        self.living = {member.name: member for member in members}
        self.code = 0
        self._timeout = timeout
        self._stopping: Signals | None = None  # the signal for the levels; None: the group runs
        self._signalled: set[str] = set()  # living members that got it
        self._next = SIGQUIT  # the signal for them when their time is over
        self._due = inf  # when that is

    @property
    def levels(self) -> int:
        """The number of different priorities that are left."""
        return len({member.priority for member in self.living.values()})

    def time_left(self, now: float) -> float | None:
        """Return the seconds until :meth:`on_time` has to be called; None: never."""
        return None if self._due == inf else max(0.0, self._due - now)

    def on_signal(self, number: Signals, now: float) -> list[Order]:
        if number not in {SIGTERM, SIGINT, SIGQUIT}:
            return self._orders(self.living, number)
        first, self._stopping = self._stopping is None, number
        if first and number != SIGQUIT:
            return self._signal_next_level(now)
        return self._signal(self.living, now)

    def on_end(self, name: str, code: int, now: float) -> list[Order]:
        """Return the orders for the end of a process; *code*: exit code, or 128 + its signal."""
        del self.living[name]
        self._signalled.discard(name)
        self.code = max(self.code, code)
        if self._stopping is None:
            self._stopping = SIGTERM
        return [] if self._signalled else self._signal_next_level(now)

    def on_time(self, now: float) -> list[Order]:
        if now < self._due:
            return []
        number, self._next = self._next, SIGKILL
        self._due = now + LAST_WORDS
        return self._orders(self._signalled, number)

    def _signal_next_level(self, now: float) -> list[Order]:
        if not self.living:
            self._due = inf
            return []
        lowest = min(member.priority for member in self.living.values())
        level = [name for name, member in self.living.items() if member.priority == lowest]
        return self._signal(level, now)

    def _signal(self, names: Collection[str], now: float) -> list[Order]:
        # A repeated signal gives no more time.
        if not self._signalled.issuperset(names):
            self._next, self._due = SIGQUIT, now + self._timeout
        self._signalled.update(names)
        return self._orders(names, self._stopping or SIGTERM)

    @staticmethod
    def _orders(names: Iterable[str], number: Signals) -> list[Order]:
        return [Order(name, number) for name in sorted(names)]
