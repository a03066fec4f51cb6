"""What leases at a Redis server are, without a server: some dictionaries and whole seconds.

Every operation is one call of one actor and returns the answer that it must get; :meth:`view` is
all that the server must hold afterwards. Nothing here knows how the scripts do it.

A claim's tag is ``<message>#<nonce>``; a plain delivery's is the message's own name. The model
hands out the nonces, one for each delivery, and knows which is in force: a stale one is refused.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

START = 1_800_000_000  # seconds, in server time
RESTS_FROM, LONGEST_REST = 2, 60  # losses, seconds
ARRIVAL = 5  # seconds from a message's arrival to its claim
PARKED_FOR = 60  # seconds between two looks at a parked message
QUEUES, PRIORITIES = ("q", "r"), (0, 3, 6, 9)
#: In the order in which a consumer of all queues looks at them: the most urgent first.
LISTS = [(queue, priority) for priority in PRIORITIES for queue in QUEUES]


class Text(NamedTuple):
    """A message as it is stored somewhere, with the counters that it carries."""

    message: str
    deliveries: int = 0
    losses: int = 0
    place: str = ""  # in the line for its key
    replaced: str = ""  # by this one


class Want(NamedTuple):
    """The exclusive key that a message's task needs."""

    key: str
    limit: int
    busy: str = "wait"


@dataclass(frozen=True)
class Record:
    """What is kept beside a lease; it outlives the lease if plain kombu ends that."""

    expiry: float
    token: int
    deliveries: int
    losses: int
    resting: bool = False
    arriving: bool = False
    waits: bool = False  # its task has not begun
    want: Want | None = None
    parked: str = ""  # its place
    holds: bool = False  # held its key

    @property
    def since(self) -> float:
        """When the message was delivered, in microseconds."""
        return self.token if self.parked else self.token or (self.expiry - ARRIVAL) * 1_000_000


@dataclass
class LeaseModel:
    """Some queues with priorities, their leases, plain deliveries and dead letters."""

    visibility_timeout: float  #: of the sweep for plain messages that goes with reaping
    now: float = START
    token: int = 0
    queues: dict[tuple[str, int], list[Text]] = field(  # of each list, the last is delivered first
        default_factory=lambda: {place: [] for place in LISTS}
    )
    homes: dict[str, tuple[str, int]] = field(default_factory=dict)  # message: its list
    nonce: int = 0  # the last that was handed out
    nonces: dict[str, int] = field(default_factory=dict)  # message: the one in force, if any
    index: dict[str, float] = field(default_factory=dict)  # tag: expiry, or time of plain delivery
    held: dict[str, Text] = field(default_factory=dict)  # tag: what goes back if nothing is said
    records: dict[str, Record] = field(default_factory=dict)
    refusals: dict[str, float] = field(default_factory=dict)
    dead: list[str] = field(default_factory=list)  # the last is the oldest
    history: dict[str, list[str]] = field(default_factory=dict)
    completed: set[str] = field(default_factory=set)
    wants: dict[str, Want | None] = field(default_factory=dict)  # message: its key
    holders: dict[str, dict[str, float]] = field(default_factory=lambda: defaultdict(dict))
    lines: dict[str, set[tuple[str, str]]] = field(default_factory=lambda: defaultdict(set))
    marks: dict[str, tuple[str, str]] = field(default_factory=dict)  # of dead letters
    in_hand: dict[str, Text] = field(default_factory=dict)  # fetched, and nowhere else yet

    # -------------------------------------------------------------------------------------- nonces

    def hand_out(self) -> int:
        """Return a nonce for the next delivery; no two are the same, whoever asks."""
        self.nonce += 1
        return self.nonce

    def is_stale(self, tag: str) -> bool:
        """Whether a claim's tag names a delivery that is over, or was never made."""
        message, _, nonce = tag.partition("#")
        return self.nonces.get(message) != int(nonce)

    # ------------------------------------------------------------------ publisher and consumers

    @property
    def waiting(self) -> int:
        return sum(map(len, self.queues.values()))

    def next_place(self, queues: tuple[str, ...] = QUEUES) -> tuple[str, int] | None:
        """Return the list from which the next message of some queues comes."""
        return next((each for each in LISTS if each[0] in queues and self.queues[each]), None)

    def publish(self, message: str, home: tuple[str, int] | None = None) -> None:
        home = self.homes.setdefault(message, home or LISTS[0])
        self.queues[home].insert(0, Text(message))

    def _pop(self, queues: tuple[str, ...] = QUEUES) -> Text:
        place = self.next_place(queues)
        assert place is not None
        return self.queues[place].pop()

    def _requeue(self, text: Text, *, front: bool) -> None:
        waiting = self.queues[self.homes[text.message]]
        waiting.insert(len(waiting) if front else 0, text)

    def arrive(self, tag: str) -> Text:
        self.held[tag] = text = self._pop()
        self.index[tag] = expiry = self.now + ARRIVAL
        self.records[tag] = Record(expiry, 0, 0, 0, arriving=True)
        return text

    def arrive_claimed(self, tag: str, seconds: float) -> Text:
        """Take a first delivery under a lease at once; its task has not begun."""
        text = self._pop()
        expiry = self.now + seconds
        want = self.wants.get(text.message)
        self.records[tag] = Record(expiry, self._next_token(), 1, 0, waits=True, want=want)
        self.index[tag], self.nonces[text.message] = expiry, int(tag.partition("#")[2])
        self.held[tag] = text._replace(deliveries=1, losses=1)
        return text

    def arrive_plain(self, tag: str) -> Text:
        """Take a first delivery as a plain consumer does, but under a tag of its own."""
        self.index[tag], self.held[tag] = self.now, self._pop()
        return self.held[tag]

    def may_arrive_claimed(self, want: Want | None) -> bool:
        """Whether its key was taken by fewer than may hold it, expired leases included."""
        return want is None or len(self.holders[want.key]) < want.limit

    def fetch(self, nonce: int) -> Text:
        text = self._pop()
        self.in_hand[f"{text.message}#{nonce:012d}"] = text
        return text

    def adopt(self, arrival: str, text: Text) -> bool:
        """Hold a message that arrived under the publisher's tag, as a plain one."""
        if self.index.get(arrival, 0) <= self.now:
            return False
        self._settle(arrival)
        self.index[text.message], self.held[text.message] = self.now, text
        return True

    def claim(
        self,
        tag: str,
        arrival: str,
        text: Text,
        seconds: float,
        *,
        waits: bool = False,
        decides: bool = False,
    ) -> tuple[int, str, str] | None:
        """Return token, 0 if it is parked, and verdict on its key and whom that names.

        None: the asker gave this claim up before, or was too late.
        """
        if tag in self.refusals or not (self.in_hand.pop(tag, None) or self._settle(arrival)):
            return None
        counters = (text.deliveries + 1, text.losses)
        want = None if text.replaced else self.wants.get(text.message)
        record = Record(self.now + seconds, 0, *counters, waits=waits, want=want)
        counted = text._replace(deliveries=text.deliveries + 1, losses=text.losses + 1)
        verdict, by = "", ""
        if want and decides and not self._is_free(want):
            verdict, by = self._turn_away(tag, counted, record, want)
        if verdict == "parked":
            self.refusals[tag] = self.now
            return 0, verdict, by
        self.records[tag] = replace(record, token=self._next_token())
        self.nonces[text.message] = int(tag.partition("#")[2])
        self.index[tag] = record.expiry
        self.held[tag] = counted
        if text.replaced:
            verdict, by = "replaced", text.replaced
        return self.token, verdict, by

    def return_unclaimed(self, tag: str, arrival: str, text: Text, *, heard: bool) -> None:
        if tag in self.refusals:
            return
        if tag in self.records:  # the claim was made
            self._restore(tag, front=True, loss=None)
        elif not heard:
            if tag in self.index:
                self.index[tag] = self.now - self.visibility_timeout
        elif self.in_hand.pop(tag, None) or self._settle(arrival):
            self._requeue(text, front=True)
        self.refusals[tag] = self.now

    # --------------------------------------------------------------------------------- holders

    def extend(self, tag: str, seconds: float, *, late: bool) -> bool:
        if tag not in self.index or (self.index[tag] <= self.now and not late):
            return False
        self.index[tag] = self.now + seconds
        self.records[tag] = replace(self.records[tag], expiry=self.now + seconds)
        return True

    def begin(self, tag: str) -> bool:
        if tag in self.records:
            self.records[tag] = replace(self.records[tag], waits=False)
        return tag in self.records and tag in self.index

    def take(self, tag: str) -> tuple[str, str]:
        """Return the verdict on a task's key when it is about to start, and whom that names."""
        record, text = self.records.get(tag), self.held.get(tag)
        if not record or not record.want or not text or self.index.get(tag, 0) <= self.now:
            return "lost", ""
        want, holders = record.want, self.holders[record.want.key]
        if tag in holders:
            return "held", ""
        if len(holders) >= want.limit:
            for each in [each for each in holders if self.index.get(each, 0) <= self.now]:
                self._oust(each, holders)
        if len(holders) < want.limit:
            holders[tag] = self.now
            self.records[tag] = replace(record, waits=False, holds=True)
            return "held", ""
        verdict = self._turn_away(tag, text, record, want)
        if verdict[0] == "parked":
            self._settle(tag)
        return verdict

    def complete(self, tag: str) -> bool:
        if tag in self.held:
            self.completed.add(self.held[tag].message)
        return self._settle(tag)

    def requeue(self, tag: str, *, orderly: bool, front: bool) -> bool:
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

    def dead_letter(self, tag: str) -> bool:
        if f"{tag} buried" in self.refusals:
            return True
        text = self.held.get(tag)
        if not self._settle(tag) or text is None:
            return False
        self.dead.insert(0, text.message)
        self.marks[text.message] = (text.place, text.replaced)
        self.history.pop(text.message, None)
        self.refusals[f"{tag} buried"] = self.now
        return True

    # --------------------------------------------------------------------------------- sweepers

    def reap(self, limit: int) -> list[str]:
        """Return the tags of what goes back: expired leases, then plain messages.

        Of what expired first; of these, what was delivered last is put in front of its queue first.
        """
        reaped: list[str] = []
        while due := self._expired()[: limit - len(reaped)]:
            reaped += self.reap_listed(self._in_order(due)[::-1])
        return reaped + self.sweep(limit - len(reaped))

    def reap_listed(self, tags: list[str]) -> list[str]:
        """Return those of some leases to their queues that are over by now; tend the parked."""
        woken: set[str] = set()
        return [tag for tag in tags if self._is_expired(tag) and self._reap(tag, woken)]

    def sweep_listed(self, tags: list[str]) -> list[str]:
        """Return those of some deliveries to their queues that are plain, and overdue by now."""
        overdue = set(self._older_than(self.visibility_timeout)) - self.records.keys()
        swept = [tag for tag in tags if tag in overdue]
        for tag in swept:
            self._restore(tag, front=True, loss=None, orderly=False)
        return swept

    def overdue(self, limit: int) -> list[str]:
        """Return the tags of what a sweep would return now."""
        expired = self._in_order(self._expired()[:limit])
        expired = [tag for tag in expired if not self.records[tag].parked]
        plain = [t for t in self._older_than(self.visibility_timeout) if t not in self.records]
        return expired + plain[: limit - len(expired)]

    def _in_order(self, tags: list[str]) -> list[str]:
        return sorted(tags, key=lambda each: (self.records[each].since, each))

    def _is_expired(self, tag: str) -> bool:
        return tag in self.records and self.records[tag].expiry <= self.now

    def _reap(self, tag: str, woken: set[str]) -> bool:
        record = self.records[tag]
        if record.parked:
            self._tend(tag, record, woken)
            return False
        waits = record.waits and not record.resting
        loss = None if record.resting or record.arriving or waits else "expired"
        self.refusals[tag] = self.now  # also where a plain sweep has returned it before
        return self._restore(tag, front=True, loss=loss, orderly=waits)

    def _expired(self) -> list[str]:
        expiries = sorted((each.expiry, tag) for tag, each in self.records.items())
        return [tag for expiry, tag in expiries if expiry <= self.now]

    def sweep(self, limit: int) -> list[str]:
        """Return the tags of plain messages that go back, as the second half of reaping."""
        overdue = self._older_than(self.visibility_timeout)
        return self.sweep_listed([tag for tag in overdue if tag not in self.records][:limit][::-1])

    def kombu_sweep(self, timeout: float, most: int = 10) -> None:
        """Let a plain process sweep with its own timeout, the youngest first."""
        for tag in self._older_than(timeout)[::-1][:most]:
            self._kombu_restore(tag, front=True)

    # ------------------------------------------------------------------- plain consumers, people

    def take_plainly(self, queue: str) -> str:
        text = self._pop((queue,))
        self.index[text.message], self.held[text.message] = self.now, text
        return text.message

    def settle_plainly(self, tag: str, *, requeue: bool) -> None:
        """Ack, drop or requeue by the publisher's tag, which survives a redelivery."""
        if requeue:
            self._kombu_restore(tag, front=False)
        elif tag in self.held:
            self.completed.add(self.held.pop(tag).message)
            del self.index[tag]

    def move_dead_letter(self, message: str, *, retry: bool) -> bool:
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
            "queues": self.queues,
            "index": self.index,
            "held": self.held,
            "leases": {tag: each.expiry for tag, each in self.records.items()},
            "records": {
                tag: (
                    each.token,
                    each.deliveries,
                    each.losses,
                    each.resting,
                    each.arriving,
                    each.waits,
                    each.parked,
                    each.holds,
                )
                for tag, each in self.records.items()
            },
            "refusals": self.refusals,
            # With their counters at nought.
            "dead": [Text(each, 0, 0, *self.marks[each]) for each in self.dead],
            "holders": {key: set(tags) for key, tags in self.holders.items() if tags},
            "lines": {key: line for key, line in self.lines.items() if line},
            "parked": Counter(
                self.homes[tag.partition("#")[0]][0]
                for line in self.lines.values()
                for _, tag in line
            ),
            "dead_letter_queues": {"q.dead"} if self.dead else set(),
            "token": self.token,
            "history": self.history,
            "foreign": [],
        }

    # ------------------------------------------------------------------------------------ parts

    def _older_than(self, seconds: float) -> list[str]:
        ceiling = self.now - seconds
        return [tag for score, tag in sorted((s, t) for t, s in self.index.items() if s <= ceiling)]

    def _settle(self, tag: str, *, back: Text | None = None, front: bool = True) -> bool:
        """End a record; *back* goes to its queue before its key is free."""
        record = self.records.pop(tag, None)
        text = self.held.pop(tag, None)
        if text is not None:
            self.nonces.pop(text.message, None)
        was_there = self.index.pop(tag, None) is not None
        if was_there and back is not None:
            self._requeue(back, front=front)
        if record is not None and record.want is not None:
            self._release(tag, record, record.want)
        return was_there

    # ------------------------------------------------------------------------------------- keys

    def _next_token(self) -> int:
        self.token = max(self.token + 1, int(self.now * 1_000_000))
        return self.token

    def _is_free(self, want: Want) -> bool:
        valid = [tag for tag in self.holders[want.key] if self.index.get(tag, 0) > self.now]
        return len(valid) < want.limit

    def _oust(self, tag: str, holders: dict[str, float]) -> None:
        if tag in self.held and tag in self.records and tag in self.index:
            other = f"{tag}~"
            self.held[other], self.records[other] = self.held.pop(tag), self.records.pop(tag)
            self.index[other] = self.index.pop(tag)
            self.nonces.pop(self.held[other].message, None)
        del holders[tag]

    def _turn_away(self, tag: str, text: Text, record: Record, want: Want) -> tuple[str, str]:
        holders = sorted((since, each) for each, since in self.holders[want.key].items())
        ids = [each.partition("#")[0] if each in self.records else "" for _, each in holders]
        by = ids[0] if ids else ""
        if want.busy == "drop" and text.message not in ids:
            return "dropped", by
        place = text.place
        if not place:
            priority, newcomer = self.homes[text.message][1], int(text.deliveries == 1)
            place = f"{priority:03d}.{newcomer}.{record.token or self._next_token():016d}"
        line = self.lines[want.key]
        last = max(line) if want.busy == "replace" and line else None
        if last is not None and last[1] in self.records and place[4:] < last[0][4:]:
            return "replaced", last[1].partition("#")[0]
        other, expiry = f"{tag}~", self.now + PARKED_FOR
        counters: dict[str, Any] = {
            "deliveries": text.deliveries - 1,
            "losses": text.losses - 1,
        }
        self.held[other], self.index[other] = text._replace(**counters, place=place), expiry
        self.records[other] = replace(record, expiry=expiry, parked=place)
        if last is not None:
            self._unpark(last[1], text.message)
        line.add((place, other))
        return "parked", by

    def _unpark(self, tag: str, by: str = "") -> bool:
        text = self.held.get(tag)
        if text is None or tag not in self.records or tag not in self.index:
            return False
        self._settle(tag, back=text._replace(replaced=by))
        return True

    def _release(self, tag: str, record: Record, want: Want) -> None:
        if record.parked:
            self.lines[want.key].discard((record.parked, tag))
            return
        self.holders[want.key].pop(tag, None)
        while line := self.lines[want.key]:
            first, waiting = min(line), self.records.get(min(line)[1])
            if waiting is not None and first[1] in self.index:
                if waiting.want is not None and self._is_free(waiting.want):
                    self._unpark(first[1])
                return
            self._settle(first[1])
            line.discard(first)

    def _tend(self, tag: str, record: Record, woken: set[str]) -> None:
        assert record.want is not None
        if tag not in self.index or tag not in self.held:
            self._settle(tag)
        elif record.want.key not in woken and self._is_free(record.want) and self._unpark(tag):
            woken.add(record.want.key)
        else:
            self.index[tag] = self.now + PARKED_FOR
            self.records[tag] = replace(record, expiry=self.now + PARKED_FOR)

    def _restore(
        self, tag: str, *, front: bool, loss: str | None, orderly: bool | None = None
    ) -> bool:
        text = self.held.get(tag)
        back = text
        if text is not None and loss is None and orderly is not False:
            back = text._replace(losses=text.losses - 1)
        if not self._settle(tag, back=back, front=front) or text is None:
            return False
        if loss is not None:
            self._remember(text.message, loss)
        return True

    def _kombu_restore(self, tag: str, *, front: bool) -> None:
        text = self.held.pop(tag, None)
        if text is not None:
            del self.index[tag]
            self.nonces.pop(text.message, None)
            self._requeue(text, front=front)

    def _remember(self, message: str, reason: str) -> None:
        self.history[message] = [*self.history.get(message, ()), reason][-20:]
