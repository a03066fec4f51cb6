"""Computes fencing tokens from the facts of a delivery, as SQS has no counter of its own.

From the left: the second in which SQS answered the poll, by its own clock (the ``Date`` of the
answer); how recently before that the message was sent; how often it was received. The second orders
deliveries that are a second or more apart, of any message of a task (a retry is a new message with
the same task id). Within one second, a retry was sent after its predecessor was received, so it is
the fresher one; and of one message, the count grows.

Limits: SQS's servers must agree on the time better than the deliveries of one task are apart; an
answer without a ``Date`` counts as one of this host's time; and two deliveries of one message *and*
one of its retry within one second cannot all be ordered. Tokens stay below 2**53, which doubles
hold exactly.
"""

from __future__ import annotations

AGE_BITS = 12  # milliseconds; all older messages count as four seconds old
COUNT_BITS = 10

_OLDEST = (1 << AGE_BITS) - 1
_MOST = (1 << COUNT_BITS) - 1


def fencing_token(second: int, sent_ms: int | None, receives: int) -> int:
    """Return the token of a delivery.

    Args:
        second: When SQS answered, in seconds since 1970.
        sent_ms: When the message was sent, in milliseconds since 1970; None: unknown.
        receives: How often it was received, this delivery included.
    """
    age = _OLDEST if sent_ms is None else second * 1000 + 999 - sent_ms
    freshness = _OLDEST - min(max(age, 0), _OLDEST)
    return ((second << AGE_BITS | freshness) << COUNT_BITS) | min(receives, _MOST)
