"""Decides what a channel without a message does next: read its queues, watch them, or wait.

A command that waits at lists takes the message out, and the message is lost together with its
client. ``CLIENT TRACKING`` only notifies clients that a key has changed, and costs nothing while it
does not, but it notifies all of them of each message. So one idle channel of a queue *watches* it:
the server notifies it, it takes the message by a script, and passes its role to the channel that
has waited longest. The others wait in ``BLPOP`` at the queue's *bell*, a list; the server serves
blocked clients in the order in which they came, as it serves plain workers. So messages are shared
as among plain workers, and a message costs the other idle workers nothing.

The watcher's name is in a key that expires. Bells and notifications are hints, never messages, and
every waiting channel reads its queues itself every :data:`LINE` seconds: that is the longest wait
of a message whose watcher was stopped, or killed before it could pass its role on. The channel that
finds such a message becomes the watcher. Two watchers of a queue do no harm: the server notifies
both, and one of them finds nothing.

Clients that watch nothing may take messages from the same lists at any time: plain workers, and
workers of versions or at servers without notifications.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

#: Seconds between two looks of a channel that stands in line, and of one that watches.
LINE, WATCH = 5.0, 10.0
#: Seconds after which the next look renews the role, which lasts for 30.
RENEWED = 15.0


class Step(Enum):
    """What is done next."""

    LOOK = "take a message, or watch a queue without a watcher"
    WATCH = "track the keys of the watched queues"
    STAND = "wait at the bells"
    REST = "wait for a notification"


@dataclass(frozen=True, slots=True)
class Stance:
    """The facts about a channel that it sends with a look."""

    channel: str  #: name of the channel
    queues: tuple[str, ...]
    letters: str = ""  #: as the script reads them
    heard: int = 0  #: number, from 1, of the queue whose bell woke it; 0: none
    expects: bool = False  #: it was notified of a message


@dataclass(slots=True)
class Waiting:
    """The state of one channel. Touched by the consuming thread only; times are monotonic."""

    queues: tuple[str, ...] = ()  #: of the last look, in the order of its numbers
    watched: tuple[str, ...] = ()  #: queues that this channel watches
    notified: bool = True  #: there may be a message
    hears: bool = False  #: the server notifies of changes of the watched queues
    heard: str = ""  #: queue whose bell woke this channel
    takes_over: bool = True  #: from another watcher; a new channel does, as the watcher may be dead
    wrong: int = 0  #: existing keys of queues that are not lists
    _looks_at: float = 0.0
    _renewed_at: float = 0.0
    _known: frozenset[str] = field(default_factory=frozenset)
    _idle: bool = False  # the look was due by the clock

    def next(self, queues: Collection[str], now: float) -> Step:
        """Return the next step of a channel of *queues* without a request under way."""
        if self.notified or now >= self._looks_at or self._known != frozenset(queues):
            return Step.LOOK
        if self.watched and not self.hears:
            return Step.WATCH
        return Step.REST if len(self.watched) == len(self._known) else Step.STAND

    def stance(self, channel: str, queues: Sequence[str], now: float) -> Stance:
        """Begin a look: return the facts for it."""
        self._idle = not self.notified and self._known == frozenset(queues)
        letters = "w" if self.watched else ""
        if self._idle:
            letters += "i"
        if self.watched and now > self._renewed_at + RENEWED:
            letters, self._renewed_at = letters + "r", now
        if self.takes_over:
            letters += "t"
        self.queues, self._known = tuple(queues), frozenset(queues)
        heard = self.queues.index(self.heard) + 1 if self.heard in self._known else 0
        return Stance(channel, self.queues, letters, heard, self.notified)

    def found(self) -> bool:
        """Note that the look found a message; return whether the watcher had missed it."""
        self.takes_over = self.takes_over or self._idle  # at the first look that finds nothing
        self.watched, self.hears = (), False
        self.notified, self.heard = True, ""
        return self._idle

    def found_nothing(self, numbers: Sequence[int], now: float, wrong: int = 0) -> None:
        """Note that the look found none, and the numbers of the queues to watch."""
        watched = tuple(self.queues[number - 1] for number in numbers)
        if not self.watched:
            self._renewed_at = now
        self.hears = self.hears and self._idle and watched == self.watched
        self.watched, self.wrong = watched, wrong
        self.notified, self.heard, self.takes_over = False, "", False
        self._looks_at = now + (WATCH if len(watched) == len(self.queues) else LINE)

    def begins_to_hear(self) -> None:
        """Note that tracking is requested; a notification may come before the reply."""
        self.hears = True

    def hears_already(self, existing: int) -> None:
        """Note the reply: the number of lists that are not empty."""
        self.notified = self.notified or existing > self.wrong

    def rang(self, queue: str) -> None:
        """Note that the bell of *queue* woke the channel; if it is "", that none did in time."""
        if queue:
            self.heard, self.notified = queue, True
        else:
            self._looks_at = 0.0

    def changed(self) -> None:
        """Note a notification; the server sends no second one for the same key.

        A channel that watches nothing any more ignores it: it is for the present watcher.
        """
        self.hears, self.notified = False, self.notified or bool(self.watched)

    def leave(self, queues: Collection[str] = ()) -> tuple[str, ...]:
        """Give up the roles for all but *queues*; return the queues whose bell is to be rung."""
        left = tuple(each for each in self.watched if each not in queues)
        if self.heard and self.heard not in queues and self.heard not in left:
            left = (*left, self.heard)
            self.heard = ""
        if left:
            self.watched = tuple(each for each in self.watched if each in queues)
            self.hears, self.notified = False, True
        return left
