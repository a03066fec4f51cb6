"""One delivery of one message: the fence of every statement, and the token."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Delivery:
    """What a row says of its last reading; another reading is another delivery."""

    queue: str  #: its queue's name in pgmq
    msg_id: int
    read_ct: int
    read_at: datetime  #: by the server's clock

    @property
    def token(self) -> int:
        """Microseconds since 1970: below 2**53, exact wherever numbers are doubles."""
        return (self.read_at - _EPOCH) // _MICROSECOND

    @property
    def tag(self) -> str:
        """Return the delivery as a text that :meth:`parse` reads, in any process."""
        return f"{self.msg_id}-{self.read_ct}-{self.token}-{self.queue}"

    @classmethod
    def parse(cls, tag: str) -> Delivery:
        """Read back a :attr:`tag`.

        Raises:
            ValueError: It is none.
        """
        msg_id, read_ct, token, queue = tag.split("-", 3)
        return cls(queue, int(msg_id), int(read_ct), _EPOCH + int(token) * _MICROSECOND)
