"""The names of all keys of a database with leases; the package's docstring has their contents."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Keys:
    """Full names, prefix included, of the keys of one database, prefix and ``unacked_key``."""

    index: str
    unacked: str
    prefix: str = ""

    @classmethod
    def of(cls, channel: Any) -> Keys:
        prefix = channel.global_keyprefix
        return cls(prefix + channel.unacked_index_key, prefix + channel.unacked_key, prefix)

    @property
    def claims(self) -> list[str]:
        """The four keys that every script takes, in their order."""
        return [self.index, self.unacked, f"{self.unacked}.leases", f"{self.unacked}.claims"]

    @property
    def token(self) -> str:
        """The last fencing token."""
        return f"{self.unacked}.token"

    @property
    def refusals(self) -> str:
        """Claims that must not be made any more."""
        return f"{self.unacked}.refusals"

    @property
    def bell(self) -> str:
        """The list at which polling channels wait for messages."""
        return f"{self.unacked}.bell"

    def bell_of(self, queue: str) -> str:
        """The list at which idle channels wait until they may watch a queue."""
        return f"{self.unacked}.bell.{queue}"

    def watcher_of(self, queue: str) -> str:
        """The name of the idle channel that watches a queue."""
        return f"{self.unacked}.watcher.{queue}"

    @property
    def parked(self) -> str:
        """How many messages of each queue wait for an exclusive key."""
        return f"{self.unacked}.parked"

    @property
    def dead_letter_queues(self) -> str:
        """The set of the names of dead-letter queues."""
        return f"{self.unacked}.dead"
