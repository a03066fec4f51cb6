"""What leases at a Redis server are, without a server: some dictionaries and whole seconds.

Every operation is one call of one actor and returns the answer that it must get; :meth:`view` is
all that the server must hold afterwards. Nothing here knows how the scripts do it.

A claim's tag is ``<message>#<nonce>``; a plain delivery's is the message's own name.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

START = 1_800_000_000  # seconds, in server time
RESTS_FROM, LONGEST_REST = 2, 60  # losses, seconds
ARRIVAL = 5  # seconds from a message's arrival to its claim


class Text(NamedTuple):
    """A message as it is stored somewhere, with the counters that it carries."""

    message: str
    deliveries: int = 0
    losses: int = 0


@dataclass(frozen=True)
class Record:
    """What is kept beside a lease; it outlives the lease if plain kombu ends that."""

    expiry: float
    token: int
    deliveries: int
    losses: int
    resting: bool = False
    arriving: bool = False


@dataclass
class LeaseModel:
    """One queue, its leases, its plain deliveries and its dead letters."""

    visibility_timeout: float  #: of the sweep for plain messages that goes with reaping
    now: float = START
    token: int = 0
    queue: list[Text] = field(default_factory=list)  # the last is delivered first
    index: dict[str, float] = field(default_factory=dict)  # tag: expiry, or time of plain delivery
    held: dict[str, Text] = field(default_factory=dict)  # tag: what goes back if nothing is said
    records: dict[str, Record] = field(default_factory=dict)
    refusals: dict[str, float] = field(default_factory=dict)
    dead: list[str] = field(default_factory=list)  # the last is the oldest
    history: dict[str, list[str]] = field(default_factory=dict)
    completed: set[str] = field(default_factory=set)
    in_hand: dict[str, Text] = field(default_factory=dict)  # fetched, and nowhere else yet

    # ------------------------------------------------------------------ publisher and consumers

    def publish(self, message: str) -> None:
        self.queue.insert(0, Text(message))

    def arrive(self, tag: str) -> Text:
        self.held[tag] = text = self.queue.pop()
        self.index[tag] = expiry = self.now + ARRIVAL
        self.records[tag] = Record(expiry, 0, 0, 0, arriving=True)
        return text

    def fetch(self, tag: str) -> Text:
        self.in_hand[tag] = text = self.queue.pop()
        return text

    def adopt(self, arrival: str, text: Text) -> bool:
        """Hold a message that arrived under the publisher's tag, as a plain one."""
        if self.index.get(arrival, 0) <= self.now:
            return False
        self._settle(arrival)
        self.index[text.message], self.held[text.message] = self.now, text
        return True

    def claim(self, tag: str, arrival: str, text: Text, seconds: float) -> int | None:
        """Return the token, or None if the asker gave this claim up before, or was too late."""
        if tag in self.refusals or not (self.in_hand.pop(tag, None) or self._settle(arrival)):
            return None
        self.token = max(self.token + 1, int(self.now * 1_000_000))
        expiry = self.now + seconds
        self.records[tag] = Record(expiry, self.token, text.deliveries + 1, text.losses)
        self.index[tag] = expiry
        self.held[tag] = Text(text.message, text.deliveries + 1, text.losses + 1)
        return self.token

    def return_unclaimed(self, tag: str, arrival: str, text: Text) -> None:
        if tag in self.refusals:
            return
        if tag in self.records:  # the claim was made
            self._restore(tag, front=True, loss=None)
        elif self.in_hand.pop(tag, None) or self._settle(arrival):
            self.queue.append(text)
        self.refusals[tag] = self.now

    # --------------------------------------------------------------------------------- holders

    def extend(self, tag: str, seconds: float, *, late: bool) -> bool:
        if tag not in self.index or (self.index[tag] <= self.now and not late):
            return False
        self.index[tag] = self.now + seconds
        self.records[tag] = replace(self.records[tag], expiry=self.now + seconds)
        return True

    def complete(self, tag: str) -> bool:
        if tag in self.held:
            self.completed.add(self.held[tag].message)
        return self._settle(tag)

    def hand_back(self, tag: str, *, orderly: bool, front: bool) -> bool:
        losses = self.records[tag].losses + 1 if tag in self.records else 0
        if orderly or losses < RESTS_FROM or tag not in self.held:
            return self._restore(tag, front=front, loss=None if orderly else "given up")
        text, record = self.held[tag], self.records[tag]
        self._settle(tag)
        self._remember(text.message, "given up")
        ends = self.now + min(LONGEST_REST, 2 ** (losses - 1))
        self.held[f"{tag}~"], self.index[f"{tag}~"] = text, ends
        self.records[f"{tag}~"] = replace(record, expiry=ends, resting=True)
        return True

    def bury(self, tag: str) -> bool:
        if f"{tag} buried" in self.refusals:
            return True
        text = self.held.get(tag)
        if not self._settle(tag) or text is None:
            return False
        self.dead.insert(0, text.message)
        self.history.pop(text.message, None)
        self.refusals[f"{tag} buried"] = self.now
        return True

    # --------------------------------------------------------------------------------- sweepers

    def reap(self, limit: int) -> list[str]:
        """Return the tags of what goes back: expired leases, then plain messages."""
        reaped: list[str] = []
        for expiry, tag in sorted((each.expiry, tag) for tag, each in self.records.items()):
            if expiry <= self.now and len(reaped) < limit:
                record = self.records[tag]
                loss = None if record.resting or record.arriving else "expired"
                self.refusals[tag] = self.now  # also where a plain sweep has returned it before
                if self._restore(tag, front=True, loss=loss, orderly=False):
                    reaped.append(tag)
        return reaped + self.sweep(limit - len(reaped))

    def sweep(self, limit: int) -> list[str]:
        """Return the tags of plain messages that go back, as the second half of reaping."""
        overdue = self._older_than(self.visibility_timeout)
        plain = [tag for tag in overdue if tag not in self.records][:limit]
        for tag in plain:
            self._restore(tag, front=True, loss=None, orderly=False)
        return plain

    def kombu_sweep(self, timeout: float, most: int = 10) -> None:
        """Let a plain process sweep with its own timeout, the youngest first."""
        for tag in self._older_than(timeout)[::-1][:most]:
            self._kombu_restore(tag, front=True)

    # ------------------------------------------------------------------- plain consumers, people

    def take_plainly(self) -> str:
        text = self.queue.pop()
        self.index[text.message], self.held[text.message] = self.now, text
        return text.message

    def settle_plainly(self, tag: str, *, requeue: bool) -> None:
        """Ack, drop or requeue by the publisher's tag, which survives a redelivery."""
        if requeue:
            self._kombu_restore(tag, front=False)
        elif tag in self.held:
            self.completed.add(self.held.pop(tag).message)
            del self.index[tag]

    def exhume(self, message: str, *, retry: bool) -> bool:
        if message not in self.dead:
            return False
        self.dead.remove(message)
        if retry:
            self.publish(message)
        else:
            self.completed.add(message)
        return True

    # ------------------------------------------------------------------------------ observation

    def view(self) -> dict[str, Any]:
        """Return all that the server must hold, in the form of ``Stage.view``."""
        return {
            "queue": self.queue,
            "index": self.index,
            "held": self.held,
            "leases": {tag: each.expiry for tag, each in self.records.items()},
            "records": {
                tag: (each.token, each.deliveries, each.losses, each.resting, each.arriving)
                for tag, each in self.records.items()
            },
            "refusals": self.refusals,
            "dead": [Text(each) for each in self.dead],  # with their counters at nought
            "graveyards": {"q.dead"} if self.dead else set(),
            "token": self.token,
            "history": self.history,
        }

    # ------------------------------------------------------------------------------------ parts

    def _older_than(self, seconds: float) -> list[str]:
        ceiling = self.now - seconds
        return [tag for score, tag in sorted((s, t) for t, s in self.index.items() if s <= ceiling)]

    def _settle(self, tag: str) -> bool:
        self.records.pop(tag, None)
        self.held.pop(tag, None)
        return self.index.pop(tag, None) is not None

    def _restore(
        self, tag: str, *, front: bool, loss: str | None, orderly: bool | None = None
    ) -> bool:
        text = self.held.get(tag)
        if not self._settle(tag) or text is None:
            return False
        if loss is not None:
            self._remember(text.message, loss)
        elif orderly is not False:
            text = text._replace(losses=text.losses - 1)
        self.queue.insert(len(self.queue) if front else 0, text)
        return True

    def _kombu_restore(self, tag: str, *, front: bool) -> None:
        text = self.held.pop(tag, None)
        if text is not None:
            del self.index[tag]
            self.queue.insert(len(self.queue) if front else 0, text)

    def _remember(self, message: str, reason: str) -> None:
        self.history[message] = [*self.history.get(message, ()), reason][-20:]
