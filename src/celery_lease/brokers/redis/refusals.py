"""By which words a server refuses for now: it is all there, and will take the same again later."""

from __future__ import annotations

from redis.exceptions import OutOfMemoryError, ReadOnlyError, ResponseError

#: Beginnings of errors, with and without the word that the client library takes for itself: the
#: server became a replica, runs a script, cannot save, or misses its replicas or its master.
PASSING = (
    "UNBLOCKED",
    "READONLY",
    "You can't write against a read only replica",
    "BUSY",
    "Redis is busy",
    "Valkey is busy",
    "MISCONF",
    "NOREPLICAS",
    "MASTERDOWN",
    "Link with MASTER is down",
)


def will_pass(exc: BaseException) -> bool:
    """Whether the same call is likely to be answered later, over another connection."""
    if not isinstance(exc, ResponseError):
        return False
    # Redis 6 first says where a script met it: "Error running script (...): -READONLY ...".
    return (
        isinstance(exc, (ReadOnlyError, OutOfMemoryError))
        or str(exc).startswith(PASSING)
        or any(f": -{word}" in str(exc) for word in PASSING)
    )
