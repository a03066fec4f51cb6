"""The values that a cursor can hold, their stored form, and the comparison of their shapes.

A cursor is JSON, and may hold the types by which databases order rows: datetimes, dates, UUIDs,
Decimals and tuples. These are stored as ``{"$": type, "v": text}`` and are restored to equal
values.
"""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from math import isfinite
from typing import TYPE_CHECKING, Any
from uuid import UUID
from zoneinfo import ZoneInfo

if TYPE_CHECKING:
    from collections.abc import Callable

TAG, VALUE, ZONE = "$", "v", "zone"

ALLOWED = (
    "None, bool, int, finite float, str, datetime, date, UUID, Decimal, and tuples, lists and "
    "dicts (with str keys) of these"
)


def encode(cursor: Any) -> Any:
    """Return a JSON value for *cursor*.

    Raises:
        TypeError: It holds a value that cannot be stored; the message names that.
    """
    if cursor is None or isinstance(cursor, (str, int)):
        return cursor
    if isinstance(cursor, float) and isfinite(cursor):
        return cursor
    if isinstance(cursor, list):
        return [encode(each) for each in cursor]
    if isinstance(cursor, dict) and all(isinstance(key, str) for key in cursor):
        encoded = {key: encode(value) for key, value in cursor.items()}
        return {TAG: "dict", VALUE: encoded} if TAG in cursor else encoded
    return _tagged(cursor)


def _tagged(cursor: Any) -> dict[str, Any]:
    if isinstance(cursor, datetime):
        tagged = {TAG: "datetime", VALUE: cursor.isoformat()}
        zone = getattr(cursor.tzinfo, "key", None)  # a ZoneInfo's
        return {**tagged, ZONE: zone} if zone else tagged
    if isinstance(cursor, date):
        return {TAG: "date", VALUE: cursor.isoformat()}
    if isinstance(cursor, UUID):
        return {TAG: "uuid", VALUE: str(cursor)}
    if isinstance(cursor, Decimal):
        return {TAG: "decimal", VALUE: str(cursor)}
    if isinstance(cursor, tuple):
        return {TAG: "tuple", VALUE: [encode(each) for each in cursor]}
    raise TypeError(
        f"a cursor cannot hold {cursor!r} of type {type(cursor).__qualname__}: it is saved for the "
        f"next run, so it may be {ALLOWED}"
    )


_READERS: dict[str, Callable[[Any], Any]] = {
    "datetime": datetime.fromisoformat,
    "date": date.fromisoformat,
    "uuid": UUID,
    "decimal": Decimal,
    "tuple": lambda value: tuple(map(decode, value)),
    "dict": lambda value: {key: decode(each) for key, each in value.items()},
}


def decode(stored: Any) -> Any:
    """Return the cursor of a value that :func:`encode` returned.

    Raises:
        ValueError: It is damaged, or of a later version. Also KeyError or TypeError.
    """
    if isinstance(stored, list):
        return [decode(each) for each in stored]
    if not isinstance(stored, dict):
        return stored
    if TAG not in stored:
        return _READERS["dict"](stored)
    value = _READERS[stored[TAG]](stored[VALUE])
    return value.astimezone(ZoneInfo(stored[ZONE])) if ZONE in stored else value


def alike(one: Any, other: Any) -> bool:
    """Whether two cursors may belong to one loop: same types in the same places.

    None, which a nullable column may have, matches everything.
    """
    if one is None or other is None:
        return True
    if isinstance(one, (tuple, list)):
        same = isinstance(other, type(one)) and (isinstance(one, list) or len(one) == len(other))
        return same and all(map(alike, one, other))
    if isinstance(one, dict):
        same = isinstance(other, dict) and one.keys() == other.keys()
        return same and all(alike(value, other[key]) for key, value in one.items())
    return _kind(one) is _kind(other)


def _kind(value: Any) -> type:
    """Return the type that a single value is compared by; of a subclass its stored type."""
    for kind in (bool, str, datetime, date, UUID):
        if isinstance(value, kind):
            return kind
    return float if isinstance(value, (int, float, Decimal)) else type(value)
