"""What is stored of a message while it is held, and what goes back to its queue.

Written once, when the message arrives, so that nothing has to be decoded to return it: the payload
is kombu's own with the flags that kombu sets on a redelivery, and starts with the two counters of
this package, of a fixed width, as the key ``lease``.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kombu.utils.json import dumps

if TYPE_CHECKING:
    from celery_lease.core.delivery import Terms

#: Keys of this package at the top of a payload: the counters, and what a dead letter adds.
OURS = frozenset({"lease", "dead"})

#: What six digits can hold, less the one that a delivery adds.
_MOST = 999_998


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try to claim a message that was popped from a queue."""

    tag: str
    key: str  #: the list it came from
    payload: str  #: what to push there, counters included
    suffix: str  #: what kombu's own restore wants behind it
    queue: str
    deliveries: int
    losses: int
    arrival: str = ""  #: tag of the record that keeps it until it is claimed, if there is one

    @classmethod
    def of(cls, message: Any, queue: str, key: str, arrival: str = "") -> Attempt:
        """Prepare a kombu *message*'s text so that it can go back without being decoded again."""
        raw = message._raw  # noqa: SLF001
        deliveries, losses = counters(raw.get("lease"))
        text = dumps(_redelivered(raw))
        counted = f'{{"lease": "{deliveries + 1:06d}:{losses + 1:06d}", {text[1:]}'
        info = message.delivery_info
        suffix = f", {dumps(info.get('exchange'))}, {dumps(info.get('routing_key'))}]"
        tag = f"{message.delivery_tag}#{uuid.uuid4().hex[:12]}"
        return cls(tag, key, counted, suffix, queue, deliveries + 1, losses, arrival)

    def record(self, terms: Terms) -> str:
        """What the claim remembers, as JSON: for restoring, and about the holder, for people."""
        record = {
            **terms.about,
            "cut": len(self.suffix.encode()),
            "key": self.key,
            "queue": self.queue,
            "deliveries": self.deliveries,
            "losses": self.losses,
        }
        # Half a surrogate pair, which a foreign id may have, is what no Lua script could read.
        return json.dumps(record, ensure_ascii=False).encode(errors="replace").decode()

    @property
    def unclaimed(self) -> str:
        """The payload as it was before this delivery: it did not take place."""
        head = f'{{"lease": "{self.deliveries - 1:06d}:{self.losses:06d}"'
        return head + self.payload[len(head) :]


def counters(text: object) -> tuple[int, int]:
    """Read deliveries and losses from a payload; what is not ours counts as a first delivery."""
    match str(text).split(":"):
        case [deliveries, losses] if deliveries.isdecimal() and losses.isdecimal():
            return min(int(deliveries), _MOST), min(int(losses), _MOST)
    return 0, 0


def _redelivered(raw: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of a kombu payload, without our keys, flagged as redelivered.

    The flags are those that kombu's own restore sets. The message at hand is not touched.
    """
    copy = {key: value for key, value in raw.items() if key not in OURS}
    if isinstance(raw.get("headers"), dict):
        copy["headers"] = {**raw["headers"], "redelivered": True}
    properties = raw["properties"]
    info = {**(properties.get("delivery_info") or {}), "redelivered": True}
    copy["properties"] = {**properties, "delivery_info": info}
    return copy
