"""Claims first deliveries as they arrive, in the same call.

A channel that expects a message, as the last look found one or the server notified it of one, names
in its look the tasks that it has leased last, for how long, and under what exclusive keys. The
script claims a first delivery of one of them whose key is free. It searches the message's text for
the facts that the claim needs, and decodes nothing; they are compared here with the message as
kombu has decoded it. Where they differ, or the message is to have another lease, it is claimed
again as any other.

It also names tasks that never have leases. Their messages are recorded as plain ones at once, under
the tag of the look: kombu's own acknowledgement, under that tag, is all that follows.

Another look names none: where the server does not notify, it waits there, and if the worker is
stopped or killed meanwhile, the message that came goes back in seconds and not only after a lease.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from celery_lease.core.delivery import Claim, Terms

if TYPE_CHECKING:
    from celery_lease.core.clock import Clock
    from celery_lease.core.keys import Exclusive

#: What a record says about a lease that the script can claim.
ABOUT = {"task", "id", "worker"}
#: What is named of the keys of a task without any: how many may hold one, and what they do if not.
NO_KEYS = (0, "")
#: The most tasks that are named.
KNOWN = 8
#: The most tasks without leases that are named.
PLAIN = 32
#: The part of a lease after which a message is claimed again: the lease counts from the look.
STALE = 0.1


class _Usual(NamedTuple):
    """What the script is told of a task."""

    seconds: float  #: of its lease
    limit: int  #: of its keys; 0: it has none
    busy: str

    def __str__(self) -> str:
        return f"{self.seconds!r} {self.limit} {self.busy}"


@dataclass(frozen=True, slots=True)
class Arrived:
    """A message that is to go back as it came."""

    tag: str  #: of its look
    key: str = ""  #: its list; "": its look was not answered, and has perhaps taken none
    unclaimed: str | bytes = ""  #: its text

    @property
    def arrival(self) -> str:
        return self.tag


class Arrivals:
    """The claims of one channel's looks. For the consuming thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._worker = ""
        self._usual: dict[str, _Usual] = {}  # by task
        self._plain: list[str] = []  # tasks without leases
        self._args: list[Any] = []  # the script's, which name these
        self._named: dict[str, _Usual] = {}  # those of the look under way, or answered last
        self._named_at = 0.0  # clock reading
        self._asks = False  # it is not answered
        self._read = ""  # as lines: token, task, id, publisher's tag, key, priority

    def args(self, *, expects: bool) -> list[Any]:
        """Return the script's arguments for a look; none if it is to claim nothing."""
        self._named = self._usual if expects else {}
        self._named_at, self._read = self._clock.now(), ""
        self._asks = expects and bool(self._args)
        return self._args if expects else []

    def answered(self, read: str = "") -> None:
        """Note the answer to a look: what the script has read of a message that it claimed."""
        self._read, self._asks = read, False

    @property
    def is_plain(self) -> bool:
        """Whether the message at hand was recorded as a plain one."""
        return self._read == "plain"

    def unheard(self, tag: str) -> Arrived | None:
        """Return, once, what a look has perhaps claimed that will not be answered any more."""
        asks, self._asks = self._asks, False
        return Arrived(tag) if asks else None

    def learn(self, terms: Terms) -> None:
        """Name the task of these terms from now on."""
        if not terms.waits or set(terms.about) != ABOUT:
            return
        task, self._worker = terms.about["task"], terms.about["worker"]
        usual = _Usual(terms.seconds, *_keys_of(terms.exclusive))
        if self._usual.get(task) != usual and "\n" not in task:
            others = [each for each in self._usual.items() if each[0] != task]
            self._usual = dict([*others[1 - KNOWN :], (task, usual)])
            self._name_them()

    def learn_plain(self, task: str) -> None:
        """Name a task without leases from now on."""
        if task and "\n" not in task and task not in self._plain:
            self._plain = [*self._plain[1 - PLAIN :], task]
            self._name_them()

    def _name_them(self) -> None:
        plain = "\n".join(["", *self._plain, ""])
        usual = "".join(f"\n{task}\n{terms}\n" for task, terms in self._usual.items())
        self._args = [json.dumps(self._worker), plain, usual]

    def claim(
        self, tag: str, queue: str, published: object, priority: int, terms: Terms
    ) -> Claim | None:
        """Return the script's claim of the message at hand; None: it is to be claimed.

        Args:
            tag: The tag of the look.
            queue: The queue of the message.
            published: The publisher's tag.
            priority: The message's.
            terms: The terms on which it is to be taken.
        """
        if not self._read or self.is_plain:
            return None
        token, task, task_id, name, *line = self._read.split("\n")
        usual = self._named.get(task)
        if (
            name != published
            or terms.about != {"task": task, "id": task_id, "worker": self._worker}
            or usual != (terms.seconds, *_keys_of(terms.exclusive))
            or line != _line_of(terms.exclusive, priority)
            or self._clock.now() - self._named_at > terms.seconds * STALE
        ):
            return None
        return Claim(
            tag=tag,
            token=int(token),
            queue=queue,
            deliveries=1,
            losses=0,
            asked_at=self._named_at,
            seconds=terms.seconds,
        )


def _keys_of(exclusive: Exclusive | None) -> tuple[int, str]:
    return NO_KEYS if exclusive is None else (exclusive.limit, str(exclusive.on_busy))


def _line_of(exclusive: Exclusive | None, priority: int) -> list[str] | None:
    """Return what the script has to have read for a key; None: it cannot have read all of it."""
    if exclusive is None:
        return []
    is_new = exclusive.expires is None and not exclusive.retried
    return [exclusive.key, str(priority)] if is_new else None
