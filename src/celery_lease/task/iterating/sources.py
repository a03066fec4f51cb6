"""The sources of items for a loop that resumes.

A source knows the place of its last item (:attr:`Source.at`), and yields the items after such a
place. Anything else is refused: a loop over it could not resume.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator, MappingView, Sequence, Set as AbstractSet
from io import IOBase
from itertools import count, islice
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from celery_lease.core.counting import total_of
from celery_lease.task.iterating.cursors import encode

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

#: The most lines of a file that are read before its offset is asked for again.
LINES_AT_MOST = 256

CALLABLE = (
    "pass a function that takes the last cursor (None at first) and returns the items after it, "
    "and cursor=, a function that returns an item's cursor"
)


class Source(Protocol[T_co]):
    """The items of a loop."""

    by: str  #: the kind of its places, for the store

    @property
    def at(self) -> Any:
        """The place of the last item that was yielded."""
        ...

    def size(self) -> float | None:
        """Return the number of all items, if it is known."""
        ...

    def after(self, at: Any) -> Generator[T_co, None, None]:
        """Yield the items after a place; after None all items."""
        ...


class Rows(Generic[T]):
    """The rows that a function returns for the last cursor."""

    by = "cursor"

    def __init__(
        self, rows_after: Callable[[Any], Iterable[T]], cursor: Callable[[T], Any]
    ) -> None:
        self._rows_after, self._cursor = rows_after, cursor
        self.at: Any = None

    def size(self) -> float | None:
        return None

    def after(self, at: Any) -> Generator[T, None, None]:
        rows = self._rows_after(at)
        try:
            items = iter(rows)
        except TypeError:
            raise TypeError(
                f"the source of a loop returned {rows!r} for the cursor {at!r}; it has to return "
                "an iterable of the items after that"
            ) from None
        try:
            for number, item in enumerate(items):
                self.at = self._cursor(item)  # first, for a body that deletes the item
                if self.at is None:
                    raise TypeError(
                        f"the cursor of {item!r} is None, with which a loop begins; cursor= has "
                        "to return a value that finds the item again"
                    )
                if not number:
                    encode(self.at)  # refused before the work, not at the first save
                yield item
        finally:
            if isinstance(items, Generator):
                items.close()


class Items(Generic[T]):
    """Items that can be iterated again in the same order; a place is the number before it."""

    by = "position"

    def __init__(self, items: Iterable[T]) -> None:
        self._items = items
        self.at = 0

    def size(self) -> float | None:
        return total_of(self._items, None, 0)

    def after(self, at: int | None) -> Generator[T, None, None]:
        start = at or 0
        for place, item in enumerate(self._rest(start) if start else self._items, start + 1):
            self.at = place
            yield item

    def _rest(self, start: int) -> Iterable[T]:
        return islice(self._items, start, None)


class Elements(Items[T]):
    """A sequence, whose elements are found by index."""

    _items: Sequence[T]

    def _rest(self, start: int) -> Iterable[T]:
        for index in count(start):
            try:
                item = self._items[index]
            except IndexError:
                return
            yield item


class Query(Items[T]):
    """A Django queryset: the database counts and skips."""

    _items: Any

    def size(self) -> float | None:
        return int(self._items.count())

    def _rest(self, start: int) -> Iterable[T]:
        rows: Iterable[T] = self._items[start:]
        return rows


class Lines:
    """A file, by lines; a place is an offset and a number of lines after it.

    It is read by ``readline``, since a text file loses its offset when it is iterated. The offset
    of a text file takes long to compute, so it is asked for once in many lines.
    """

    by = "offset"

    def __init__(self, file: Any) -> None:
        self._file = file
        self.at: tuple[int, int] | None = None

    def size(self) -> float | None:
        return None

    def after(self, at: tuple[int, int] | None) -> Generator[Any, None, None]:
        file = self._file
        offset, lines = at or (file.tell(), 0)
        file.seek(offset)
        for _ in range(lines):
            file.readline()
        while line := file.readline():
            lines += 1
            self.at = offset, lines
            yield line
            if lines >= LINES_AT_MOST:
                offset, lines = file.tell(), 0


def source_of(source: Any, cursor: Callable[[Any], Any] | None) -> Source[Any]:
    """Return the source for the arguments of ``iterate``.

    Raises:
        TypeError: A loop over it cannot resume; the message names what can.
    """
    if cursor is not None:
        if callable(source) and callable(cursor):
            return Rows(source, cursor)
        wrong = "cursor=" if callable(source) else "with cursor=, the source"
        raise TypeError(f"{wrong} has to be a function; {CALLABLE}")
    if hasattr(source, "readline"):
        file = getattr(source, "file", source)  # a temporary file is a wrapper
        if isinstance(file, IOBase):
            return _lines(file)
    _refuse(source)
    if isinstance(source, Sequence) and not isinstance(source, deque):
        return Elements(source)
    return Query(source) if _is_queryset(source) else Items(source)


def _lines(file: IOBase) -> Lines:
    if not file.seekable():
        raise TypeError(f"{file!r} cannot seek, so a loop in it cannot be resumed; copy it first")
    return Lines(file)


def _is_queryset(source: Any) -> bool:
    """Whether an object is a Django queryset, without an import of Django."""
    return all(hasattr(source, name) for name in ("ordered", "iterator", "values_list"))


def _refuse(source: Any) -> None:
    what = f"a loop in {type(source).__qualname__} cannot be resumed:"
    if isinstance(source, Iterator):
        raise TypeError(f"{what} an iterator goes by once and cannot begin again; {CALLABLE}")
    if isinstance(source, AbstractSet) and not isinstance(source, MappingView):
        raise TypeError(f"{what} a set has another order in each process; pass sorted(...)")
    if _is_queryset(source) and not source.ordered:
        raise TypeError(
            f"{what} without order_by() the database returns rows in any order; {CALLABLE}"
        )
    if not isinstance(source, Iterable):
        reason = "a function needs cursor=" if callable(source) else "it is not iterable"
        raise TypeError(f"{what} {reason}; {CALLABLE}")
