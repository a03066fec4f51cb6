"""The names of all keys of a database with leases; the package's docstring has their contents."""

from __future__ import annotations

from typing import Any


class Keys:
    """Full names, prefix included, of the keys of one database, prefix and ``unacked_key``."""

    def __init__(self, index: str, unacked: str, prefix: str = "") -> None:
        self.index, self.unacked, self.prefix = index, unacked, prefix
        #: The four keys that every script takes, in their order.
        self.claims = [index, unacked, f"{unacked}.leases", f"{unacked}.claims"]
        self.token = f"{unacked}.token"  #: the last fencing token
        self.refusals = f"{unacked}.refusals"  #: claims that must not be made any more
        self.bell = f"{unacked}.bell"  #: list at which polling channels wait for messages
        self.parked = f"{unacked}.parked"  #: how many of each queue wait for an exclusive key
        self.dead_letter_queues = f"{unacked}.dead"  #: the set of their names

    @classmethod
    def of(cls, channel: Any) -> Keys:
        prefix = channel.global_keyprefix
        return cls(prefix + channel.unacked_index_key, prefix + channel.unacked_key, prefix)

    def bell_of(self, queue: str) -> str:
        """The list at which idle channels wait until they may watch a queue."""
        return f"{self.unacked}.bell.{queue}"

    def watcher_of(self, queue: str) -> str:
        """The name of the idle channel that watches a queue."""
        return f"{self.unacked}.watcher.{queue}"
