"""The in-memory driver: a dictionary of claims, and a lock."""

from __future__ import annotations

import itertools
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kombu.transport.memory import Channel

from celery_lease.brokers.memory.channel import Leasing
from celery_lease.brokers.memory.exclusive import PLACE, REPLACED, Keys
from celery_lease.brokers.qos import VirtualDriver
from celery_lease.core.clock import Clock, SystemClock
from celery_lease.core.delivery import Answer, Capabilities, Claim, Reaped, Renewal, Terms
from celery_lease.core.keys import Exclusive, KeyAnswer, KeyUse, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


#: Key of celery-lease at the top of a message in its queue: earlier deliveries, and losses.
COUNTERS = "lease"


@dataclass(slots=True, kw_only=True)
class Delivery:
    """A message that was taken from its queue."""

    raw: Mapping[str, Any]
    queue: str
    deliveries: int
    losses: int
    about: Mapping[str, Any]
    expiry: float
    waits: bool = False  #: its task has not begun: an expiry is no loss
    exclusive: Exclusive | None = None  #: the key that its task needs


class Store:
    """The leases of this process."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.deliveries: dict[str, Delivery] = {}
        self.tokens = itertools.count(1)
        #: Guards ``held``, ``keys`` and what is in them; taken by any thread, for a moment.
        self.lock = threading.Lock()
        self.clock = clock or SystemClock()
        self.keys = Keys(
            now=self._now,
            is_valid=lambda tag, now: tag in self.deliveries and now < self.deliveries[tag].expiry,
            about=lambda tag: self.deliveries[tag].about if tag in self.deliveries else {},
            put=_put_in_front,
            end=lambda tag: self.requeue(tag, orderly=False, front=True),
        )

    def _now(self) -> float:
        return self.clock.now()

    def requeue(self, tag: str, *, orderly: bool, front: bool) -> bool:
        """Return a message to its queue, counters included; the caller holds the lock."""
        delivery = self.deliveries.pop(tag, None)
        if delivery is None:
            return False
        counters = [delivery.deliveries, delivery.losses + (not orderly)]
        raw = {**delivery.raw, COUNTERS: counters, "redelivered": True}
        _put(delivery.queue, raw, front=front)
        self.keys.released(tag, delivery.exclusive)
        return True

    def complete(self, tag: str) -> bool:
        """Forget a message for good, also a parked one; for who holds the lock."""
        delivery = self.deliveries.pop(tag, None)
        if delivery is None:
            return self.keys.purge(tag)
        self.keys.released(tag, delivery.exclusive)
        return True


def _put(name: str, raw: Mapping[str, Any], *, front: bool) -> None:
    queue = Channel.queues[name]
    with queue.mutex:
        (queue.queue.appendleft if front else queue.queue.append)(raw)
        queue.not_empty.notify()


def _put_in_front(name: str, raw: Mapping[str, Any]) -> None:
    _put(name, raw, front=True)


#: Shared by all drivers, as kombu's queues are by all its connections.
STORE = Store()


class MemoryDriver(VirtualDriver):
    """Leases on the queues of this process. Thread-safe."""

    capabilities = Capabilities(
        extends=True, fences=True, confirms=True, granularity=0.0, reaps=True, keys=True
    )
    channel_class = Leasing

    @classmethod
    def connect(cls, channel: Any, clock: Clock | None = None) -> MemoryDriver:
        """Return a driver; all drivers lease the queues of this process."""
        del channel
        return cls(clock or SystemClock())

    def __init__(self, clock: Clock, store: Store = STORE) -> None:
        self._clock = store.clock = clock
        self._store = store

    def claim(self, message: Any, queue: str, terms: Terms) -> Claim | KeyAnswer:
        """Take a message that was just taken from its queue under a lease, or park it."""
        raw, now = message._raw, self._clock.now()  # noqa: SLF001
        deliveries, losses = raw.get(COUNTERS, (0, 0))
        token = next(self._store.tokens)
        tag = f"{message.delivery_tag}#{token}"
        exclusive, answer = terms.exclusive, None
        if REPLACED in raw:
            exclusive, answer = None, KeyAnswer(Verdict.REPLACED, str(raw[REPLACED]))
        elif exclusive is not None and exclusive.decides:
            with self._store.lock:
                keys = self._store.keys
                if not keys.is_free(exclusive):
                    answer = keys.turn_away(tag, raw, queue, terms.about, exclusive)
        if answer is not None and not answer.verdict.revokes:
            return answer
        claim = Claim(
            tag=tag,
            token=token,
            queue=queue,
            deliveries=deliveries + 1,
            losses=losses,
            asked_at=now,
            seconds=terms.seconds,
            turned_away=answer,
            parked_at=raw[PLACE][2] + self._epoch() if PLACE in raw else None,
        )
        with self._store.lock:
            self._store.deliveries[claim.tag] = Delivery(
                raw=raw,
                queue=queue,
                deliveries=claim.deliveries,
                losses=losses,
                about=terms.about,
                expiry=now + terms.seconds,
                waits=terms.waits,
                exclusive=exclusive,
            )
        return claim

    def take_key(self, tag: str) -> KeyAnswer:
        with self._store.lock:
            delivery, keys = self._store.deliveries.get(tag), self._store.keys
            if (
                delivery is None
                or delivery.exclusive is None
                or self._clock.now() >= delivery.expiry
            ):
                return KeyAnswer(Verdict.LOST)
            if keys.take(tag, delivery.exclusive):
                delivery.waits = False
                return KeyAnswer(Verdict.HELD)
            answer = keys.turn_away(
                tag, delivery.raw, delivery.queue, delivery.about, delivery.exclusive
            )
            if answer.verdict is Verdict.PARKED:
                del self._store.deliveries[tag]
            return answer

    def keys_in_use(self) -> list[KeyUse]:
        with self._store.lock:
            return list(self._store.keys.in_use(self._epoch()))

    def parked(self) -> dict[str, int]:
        with self._store.lock:
            return self._store.keys.parked()

    def _epoch(self) -> float:
        return self._clock.wall().timestamp() - self._clock.now()

    def extend(self, renewals: Sequence[Renewal], *, timeout: float = 0.0) -> list[Answer]:
        del timeout
        with self._store.lock:
            return [self._extend(each, self._clock.now()) for each in renewals]

    def begin(self, tags: Sequence[str]) -> list[Answer]:
        return self._each(tags, self._begin)

    def complete(self, tags: Sequence[str]) -> list[Answer]:
        return self._each(tags, self._store.complete)

    drop = complete

    def requeue(
        self,
        tags: Sequence[str],
        *,
        orderly: bool = True,
        front: bool = True,
        why: Mapping[str, object] | None = None,
    ) -> list[Answer]:
        del why
        return self._each(tags, lambda tag: self._store.requeue(tag, orderly=orderly, front=front))

    def reap(self, *, limit: int) -> list[Reaped]:
        """Return expired messages of this process to their queues."""
        with self._store.lock:
            self._store.keys.tend(self._clock.wall().timestamp())
            late = self._late(limit)
            for each in late:
                waits = self._store.deliveries[each.tag].waits
                self._store.requeue(each.tag, orderly=waits, front=True)
        return late

    def overdue(self, *, limit: int) -> list[Reaped]:
        with self._store.lock:
            return self._late(limit)

    def _extend(self, renewal: Renewal, now: float) -> Answer:
        delivery = self._store.deliveries.get(renewal.tag)
        if delivery is None or (now >= delivery.expiry and not renewal.late):
            return Answer.LOST
        delivery.expiry = now + renewal.seconds
        return Answer.HELD

    def _begin(self, tag: str) -> bool:
        delivery = self._store.deliveries.get(tag)
        if delivery is not None:
            delivery.waits = False
        return delivery is not None

    def _each(self, tags: Sequence[str], act: Callable[[str], bool]) -> list[Answer]:
        with self._store.lock:
            return [Answer.HELD if act(tag) else Answer.LOST for tag in tags]

    def _late(self, limit: int) -> list[Reaped]:
        now = self._clock.now()
        late = (
            (tag, delivery)
            for tag, delivery in self._store.deliveries.items()
            if now >= delivery.expiry
        )
        return [
            Reaped(tag=tag, queue=delivery.queue, late=now - delivery.expiry, about=delivery.about)
            for tag, delivery in itertools.islice(late, limit)
        ]
