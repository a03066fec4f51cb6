"""The stored form of a held message, and the text that goes back to its queue.

Written once, when the message is received, so that a return does not have to decode it: the payload
is kombu's own with the flags that kombu sets on a redelivery, and begins with the two counters of
celery-lease, of a fixed width, under the key ``lease``.
"""

from __future__ import annotations

import json
import re
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kombu.utils.encoding import bytes_to_str
from kombu.utils.json import dumps

from celery_lease.core.delivery import Claim, Terms
from celery_lease.core.keys import Exclusive, KeyAnswer, Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


#: Keys of this package at the top of a payload: the counters, the place in the line for an
#: exclusive key, the task that took it, and what a dead letter adds.
OURS = frozenset({"lease", "place", "replaced", "dead"})
#: A place, as ``exclusive.lua`` writes it: priority, whether a newcomer's, a number that grows.
PLACE = re.compile(r"\d{3}\.[01]\.\d{16}")

#: The most that six digits can hold, less the one that a delivery adds.
_MOST = 999_998


@dataclass(frozen=True, slots=True)
class Delivery:
    """One delivery of a message: the facts for its claim, and the text for its return."""

    tag: str
    key: str  #: the list of the message
    payload: str  #: the text to push there, counters included
    suffix: str  #: the rest of the text for kombu's own restore
    queue: str
    deliveries: int
    losses: int
    arrival: str = ""  #: tag of the record that keeps it until it is claimed; "": there is none
    priority: int = 0  #: as kombu reads it: the least is delivered first
    place: str = ""  #: in the line for its key, if it was parked before
    replaced: str | None = None  #: the id of the task that waits in its place; None: none does

    @classmethod
    def of(cls, message: Any, queue: str, key: str, arrival: str = "") -> Delivery:
        """Prepare a kombu *message*'s text so that it can go back without decoding."""
        raw = message._raw  # noqa: SLF001
        deliveries, losses = counters(raw.get("lease"))
        text = dumps(_redelivered(raw))
        place, replaced = _line(raw)
        ours = f'"place": "{place}", ' if place else ""
        ours += f'"replaced": {json.dumps(replaced)}, ' if replaced is not None else ""
        counted = f'{{"lease": "{deliveries + 1:06d}:{losses + 1:06d}", {ours}{text[1:]}'
        info = message.delivery_info
        suffix = f", {dumps(info.get('exchange'))}, {dumps(info.get('routing_key'))}]"
        tag = f"{message.delivery_tag}#{uuid.uuid4().hex[:12]}"
        line = (priority_of(raw), place, replaced)
        return cls(tag, key, counted, suffix, queue, deliveries + 1, losses, arrival, *line)

    def record(self, terms: Terms) -> str:
        """The claim's record, as JSON: the place for a return, and facts about the holder."""
        record = {
            **({"waits": True} if terms.waits else {}),  # begin.lua takes it out again
            **terms.about,
            "cut": len(self.suffix.encode()),
            "key": self.key,
            "queue": self.queue,
            "deliveries": self.deliveries,
            "losses": self.losses,
        }
        if (exclusive := self.exclusive(terms)) is not None:
            record["exclusive"] = self._line_of(exclusive)
        # Lua's JSON cannot read half a surrogate pair, which a foreign id may have.
        return json.dumps(record, ensure_ascii=False).encode(errors="replace").decode()

    def exclusive(self, terms: Terms) -> Exclusive | None:
        """Return the key that its task is to hold; none if that is only revoked."""
        return terms.exclusive if self.replaced is None else None

    def _line_of(self, exclusive: Exclusive) -> dict[str, Any]:
        """What ``exclusive.lua`` reads."""
        came_before = self.deliveries > 1 or exclusive.retried
        return {
            "key": exclusive.key,
            "limit": exclusive.limit,
            "busy": str(exclusive.on_busy),
            "order": f"{self.priority:03d}.{0 if came_before else 1}",
            "place": self.place,
            "expires": exclusive.expires,
        }

    def claimed(self, reply: Sequence[Any], terms: Terms, asked_at: float) -> Claim | KeyAnswer:
        """Return what ``claim.lua`` replied: a claim, or why the message was parked."""
        token, *answer = map(bytes_to_str, reply)
        turned_away = KeyAnswer(Verdict(answer[0]), answer[1]) if answer[0] else None
        if turned_away is not None and not turned_away.verdict.revokes:
            return turned_away
        if self.replaced is not None:
            turned_away = KeyAnswer(Verdict.REPLACED, self.replaced)
        return Claim(
            tag=self.tag,
            token=int(token),
            queue=self.queue,
            deliveries=self.deliveries,
            losses=self.losses,
            asked_at=asked_at,
            seconds=terms.seconds,
            turned_away=turned_away,
            parked_at=self.parked_at,
        )

    @property
    def parked_at(self) -> float | None:
        """Since when it has waited for its key, in seconds since 1970; None: it has not."""
        return int(self.place.rpartition(".")[2]) / 1e6 if self.place else None

    @property
    def unclaimed(self) -> str:
        """The payload as before this delivery, which then does not count."""
        head = f'{{"lease": "{self.deliveries - 1:06d}:{self.losses:06d}"'
        return head + self.payload[len(head) :]


def counters(text: object) -> tuple[int, int]:
    """Parse deliveries and losses from a payload; a foreign value counts as a first delivery."""
    match str(text).split(":"):
        case [deliveries, losses] if deliveries.isdecimal() and losses.isdecimal():
            return min(int(deliveries), _MOST), min(int(losses), _MOST)
    return 0, 0


def _line(raw: Mapping[str, Any]) -> tuple[str, str | None]:
    """Read a message's place in a line, and the task that took it."""
    place, replaced = raw.get("place"), raw.get("replaced")
    is_place = isinstance(place, str) and PLACE.fullmatch(place)
    return str(place) if is_place else "", replaced if isinstance(replaced, str) else None


def priority_of(raw: Mapping[str, Any]) -> int:
    """Return the priority of a kombu payload."""
    try:
        return max(0, min(9, int(raw["properties"]["priority"])))
    except (KeyError, TypeError, ValueError):
        return 0


def _redelivered(raw: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of a kombu payload, without celery-lease's keys, flagged as redelivered.

    The flags are those of kombu's own restore. The original is not changed.
    """
    copy = {key: value for key, value in raw.items() if key not in OURS}
    if isinstance(raw.get("headers"), dict):
        copy["headers"] = {**raw["headers"], "redelivered": True}
    properties = raw["properties"]
    info = {**(properties.get("delivery_info") or {}), "redelivered": True}
    copy["properties"] = {**properties, "delivery_info": info}
    return copy
