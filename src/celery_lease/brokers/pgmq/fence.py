"""One delivery of one message: the fence of every statement, and the fencing token."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from celery_lease.brokers.pgmq.statements import RETURNS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from celery_lease.core.delivery import Terms

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Delivery:
    """The columns of a row's last read, which identify a delivery."""

    queue: str  #: the queue's name in pgmq
    msg_id: int
    read_ct: int
    read_at: datetime  #: by the server's clock

    @property
    def token(self) -> int:
        """Microseconds since 1970: below 2**53, which doubles hold exactly."""
        return (self.read_at - _EPOCH) // _MICROSECOND

    @property
    def tag(self) -> str:
        """Return the delivery as a text that :meth:`parse` reads, in any process."""
        return f"{self.msg_id}-{self.read_ct}-{self.token}-{self.queue}"

    @classmethod
    def parse(cls, tag: str) -> Delivery:
        """Parse a :attr:`tag`.

        Raises:
            ValueError: It is no tag.
        """
        msg_id, read_ct, token, queue = tag.split("-", 3)
        return cls(queue, int(msg_id), int(read_ct), _EPOCH + int(token) * _MICROSECOND)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedMessage:
    """A message as it was received, before it is claimed."""

    delivery: Delivery
    queue: str  #: the queue's name in kombu
    terms: Terms
    hidden_until: float  #: clock reading until which the read hides it from others
    headers: Mapping[str, Any] | None = None  #: the column of the row

    @property
    def returns(self) -> int:
        """The number of earlier deliveries that ended in an orderly return."""
        return int((self.headers or {}).get(RETURNS) or 0)
