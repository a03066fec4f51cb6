"""The names of all keys of a database with leases; what is in them says the package's docstring."""

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
        """Read them off a kombu channel."""
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
        """A list to wait at for messages."""
        return f"{self.unacked}.bell"

    @property
    def graveyards(self) -> str:
        """Names of dead-letter queues."""
        return f"{self.unacked}.dead"
