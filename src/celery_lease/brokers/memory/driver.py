"""The lease calls of the in-memory broker: a dictionary of claims, and a lock."""

from __future__ import annotations

import itertools
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kombu.transport.memory import Channel

from celery_lease.core.clock import SystemClock
from celery_lease.core.delivery import Answer, Capabilities, Claim, Reaped, Renewal, Terms

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from celery_lease.core.clock import Clock

#: Key of this package at the top of a message in its queue: earlier deliveries, and losses.
COUNTERS = "lease"


@dataclass(slots=True, kw_only=True)
class Held:
    """A message that is out of its queue."""

    raw: Mapping[str, Any]
    queue: str
    deliveries: int
    losses: int
    about: Mapping[str, Any]
    expiry: float


@dataclass(slots=True)
class Store:
    """What the broker knows of all leases of this process."""

    held: dict[str, Held] = field(default_factory=dict)
    tokens: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    #: Guards ``held`` and what is in it; taken by any thread, for a moment.
    lock: threading.Lock = field(default_factory=threading.Lock)

    def put_back(self, tag: str, *, orderly: bool, front: bool) -> bool:
        """Return a message to its queue, counters included; for who holds the lock."""
        held = self.held.pop(tag, None)
        if held is None:
            return False
        counters = [held.deliveries, held.losses + (not orderly)]
        raw = {**held.raw, COUNTERS: counters, "redelivered": True}
        queue = Channel.queues[held.queue]
        with queue.mutex:
            (queue.queue.appendleft if front else queue.queue.append)(raw)
            queue.not_empty.notify()
        return True


#: Shared by all drivers, as kombu's queues are by all its connections.
STORE = Store()


class MemoryDriver:
    """Leases on the queues of this process. Thread-safe."""

    capabilities = Capabilities(
        extends=True, fences=True, confirms=True, granularity=0.0, reaps=True
    )

    def __init__(self, clock: Clock, store: Store = STORE) -> None:
        self._clock = clock
        self._store = store

    def claim(self, message: Any, queue: str, terms: Terms) -> Claim:
        """Take a message that was just taken from its queue under a lease."""
        raw, now = message._raw, self._clock.now()  # noqa: SLF001
        deliveries, losses = raw.get(COUNTERS, (0, 0))
        token = next(self._store.tokens)
        claim = Claim(
            tag=f"{message.delivery_tag}#{token}",
            token=token,
            queue=queue,
            deliveries=deliveries + 1,
            losses=losses,
            asked_at=now,
            seconds=terms.seconds,
        )
        with self._store.lock:
            self._store.held[claim.tag] = Held(
                raw=raw,
                queue=queue,
                deliveries=claim.deliveries,
                losses=losses,
                about=terms.about,
                expiry=now + terms.seconds,
            )
        return claim

    def extend(self, renewals: Sequence[Renewal], *, timeout: float = 0.0) -> list[Answer]:
        """Move expiries."""
        del timeout
        with self._store.lock:
            return [self._extend(each, self._clock.now()) for each in renewals]

    def complete(self, tags: Sequence[str]) -> list[Answer]:
        """Forget messages for good."""
        return self._each(tags, lambda tag: self._store.held.pop(tag, None) is not None)

    drop = complete

    def hand_back(
        self, tags: Sequence[str], *, orderly: bool = True, front: bool = True
    ) -> list[Answer]:
        """Return messages to their queues."""
        return self._each(tags, lambda tag: self._store.put_back(tag, orderly=orderly, front=front))

    def return_unclaimed(self, attempts: Sequence[Any]) -> list[Answer]:
        """Do nothing: every claim succeeds."""
        return [Answer.HELD] * len(attempts)

    def reap(self, *, limit: int) -> list[Reaped]:
        """Return expired messages, of anybody in this process, to their queues."""
        with self._store.lock:
            late = self._late(limit)
            for each in late:
                self._store.put_back(each.tag, orderly=False, front=True)
        return late

    def overdue(self, *, limit: int) -> list[Reaped]:
        """Return what :meth:`reap` would return."""
        with self._store.lock:
            return self._late(limit)

    def close(self) -> None:
        """Do nothing: there is no connection."""

    def _extend(self, renewal: Renewal, now: float) -> Answer:
        held = self._store.held.get(renewal.tag)
        if held is None or (now >= held.expiry and not renewal.late):
            return Answer.LOST
        held.expiry = now + renewal.seconds
        return Answer.HELD

    def _each(self, tags: Sequence[str], act: Callable[[str], bool]) -> list[Answer]:
        with self._store.lock:
            return [Answer.HELD if act(tag) else Answer.LOST for tag in tags]

    def _late(self, limit: int) -> list[Reaped]:
        now = self._clock.now()
        late = ((tag, held) for tag, held in self._store.held.items() if now >= held.expiry)
        return [
            Reaped(tag=tag, queue=held.queue, late=now - held.expiry, about=held.about)
            for tag, held in itertools.islice(late, limit)
        ]


def connect(channel: Any, clock: Clock | None = None) -> MemoryDriver:
    """Make a driver; all of them lease the queues of this process."""
    del channel
    return MemoryDriver(clock or SystemClock())
