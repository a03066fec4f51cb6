"""Recognizes temporary errors of a server, after which the same command will work again."""

from __future__ import annotations

from redis.exceptions import OutOfMemoryError, ReadOnlyError, ResponseError

#: Beginnings of these errors, with and without the word that the client library strips: the server
#: became a replica, runs a script, cannot save, or misses its replicas or its master.
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


def is_replica(exc: BaseException) -> bool:
    """Whether the error comes from a replica, which may not write.

    The client library recognizes the word only at the beginning; see :func:`will_pass`.
    """
    if isinstance(exc, ReadOnlyError):
        return True
    return isinstance(exc, ResponseError) and ": -READONLY" in str(exc)


def will_pass(exc: BaseException) -> bool:
    """Whether the same call is likely to be answered later, over another connection."""
    if not isinstance(exc, ResponseError):
        return False
    # Redis 6 first names the place in a script: "Error running script (...): -READONLY ...".
    return (
        isinstance(exc, (ReadOnlyError, OutOfMemoryError))
        or str(exc).startswith(PASSING)
        or any(f": -{word}" in str(exc) for word in PASSING)
    )
