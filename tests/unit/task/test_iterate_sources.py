"""What a loop that resumes may go through, and the cursors that can be saved."""

from __future__ import annotations

import codecs
import csv
import io
from collections import deque
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings, strategies as st

from celery_lease.task.iterating import sources
from celery_lease.task.iterating.cursors import alike, decode, encode
from celery_lease.task.iterating.sources import source_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


class Anew:
    """An iterable that begins again each time."""

    def __iter__(self) -> Iterator[int]:
        return iter((1, 2, 3, 4))


class Indexed(list[int]):
    """A sequence that tells which items were asked for."""

    def __getitem__(self, index: Any) -> Any:
        asked.append(index)
        return super().__getitem__(index)


asked: list[Any] = []


class QuerySet:
    """As much of Django's as a loop uses."""

    def __init__(self, rows: list[int], *, ordered: bool = True) -> None:
        self.rows, self.ordered = rows, ordered

    def __getitem__(self, part: slice) -> list[int]:
        asked.append(part)
        return self.rows[part]

    def __iter__(self) -> Iterator[int]:
        return iter(self.rows)

    def count(self) -> int:
        return len(self.rows)

    def __len__(self) -> int:
        raise AssertionError("loads all rows")

    iterator = values_list = count


@pytest.fixture(autouse=True)
def nothing_asked() -> None:
    """Begin with a fresh record."""
    asked.clear()


@pytest.mark.parametrize(
    "make",
    [
        lambda: [1, 2, 3, 4],
        lambda: (1, 2, 3, 4),
        lambda: range(1, 5),
        lambda: deque([1, 2, 3, 4]),
        lambda: {1: "a", 2: "b", 3: "c", 4: "d"},
        {1: "a", 2: "b", 3: "c", 4: "d"}.keys,
        Anew,
        lambda: QuerySet([1, 2, 3, 4]),
    ],
)
def test_what_can_be_iterated_anew_goes_on_by_position(
    make_lease_context: Any, make: Callable[[], Any]
) -> None:
    """At the item after the last completed one."""
    first = make_lease_context()
    for item in first.iterate(make()):
        if item == 3:
            break
    assert [*make_lease_context(after=first).iterate(make())] == [3, 4]


@pytest.mark.parametrize(
    ("make", "expected"),
    [(Indexed, [2, 3, 4]), (QuerySet, [slice(2, None)])],
)
def test_what_was_done_is_not_loaded_again(make: Any, expected: list[Any]) -> None:
    """A sequence is asked by index, a database for what comes after a number of rows."""
    source = source_of(make([1, 2, 3, 4]), None)
    assert source.size() == 4
    assert [*source.after(2)] == [3, 4]
    assert asked == expected


@pytest.mark.parametrize(
    ("source", "cursor", "reason"),
    [
        (iter([1]), None, "list_iterator cannot be resumed: an iterator goes by once"),
        ((each for each in [1]), None, "an iterator goes by once and cannot begin again; pass a"),
        (csv.reader(["a"]), None, "an iterator goes by once"),
        (zip([1], strict=True), None, "an iterator goes by once"),
        ({1, 2}, None, "a set has another order in each process; pass sorted"),
        (frozenset({1}), None, "a set has another order"),
        (QuerySet([], ordered=False), None, r"without order_by\(\) the database returns rows in"),
        (5, None, "a loop in int cannot be resumed: it is not iterable"),
        (lambda _: [], None, "a function needs cursor="),
        ([1], lambda row: row, "with cursor=, the source has to be a function"),
        (lambda _: [], "id", "cursor= has to be a function"),
    ],
)
def test_what_cannot_be_resumed_is_refused_at_once(
    lease_context: Any, source: Any, cursor: Any, reason: str
) -> None:
    """With the reason and what to pass instead, before any item."""
    with pytest.raises(TypeError, match=reason):
        lease_context.iterate(source, cursor=cursor)


@pytest.mark.parametrize(
    ("options", "error", "reason"),
    [
        ({"every": -1}, ValueError, "every is a number of seconds, 0 or more, not -1"),
        ({"every": True}, ValueError, "not True"),
        ({"every": float("nan")}, ValueError, "not nan"),
        ({"every": "5"}, ValueError, "not '5'"),
        ({"name": ""}, TypeError, "name is a text that names the loop within its task, not ''"),
        ({"name": 5}, TypeError, "not 5"),
        ({"on_mismatch": "anew"}, ValueError, 'on_mismatch is "raise" or "restart", not \'anew\''),
    ],
)
def test_wrong_options_are_refused_at_once(
    lease_context: Any, options: Any, error: type[Exception], reason: str
) -> None:
    """With what they may be."""
    with pytest.raises(error, match=reason):
        lease_context.iterate([1], **options)


def test_a_function_that_returns_no_rows_is_told(lease_context: Any) -> None:
    """And not taken for one that has come to the end."""
    with pytest.raises(TypeError, match="returned None for the cursor None; it has to return an"):
        next(lease_context.iterate(lambda _: None, cursor=lambda row: row))


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "the cursor of 1 is None, with which a loop begins"),
        (b"a", "a cursor cannot hold b'a' of type bytes"),
        ((1, {2}), r"a cursor cannot hold \{2\} of type set"),
        (float("inf"), "cannot hold inf"),
        ({1: 2}, r"cannot hold \{1: 2\} of type dict"),
    ],
)
def test_a_cursor_that_cannot_be_saved_is_refused_before_the_work(
    lease_context: Any, value: Any, reason: str
) -> None:
    """At the first item, and not after some seconds of work."""
    with pytest.raises(TypeError, match=reason):
        next(lease_context.iterate(lambda _: [1], cursor=lambda _: value))


# Files.


@pytest.mark.parametrize("stop", [0, 1, 4, 5, 6, 11])
@pytest.mark.parametrize("mode", ["r", "rb"])
def test_a_file_goes_on_at_its_line(
    make_lease_context: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    stop: int,
    mode: str,
) -> None:
    """Also in the middle of what lies between two questions for the offset."""
    monkeypatch.setattr(sources, "LINES_AT_MOST", 5)
    path, encoding = tmp_path / "lines", None if "b" in mode else "utf-8"
    path.write_text("head\n" + "".join(f"zähl {number}\n" for number in range(12)))
    first = make_lease_context()
    with path.open(mode, encoding=encoding) as file:
        assert file.readline()
        for number, _ in enumerate(first.iterate(file)):
            if number == stop:
                break
    with path.open(mode, encoding=encoding) as file:
        rest = [*make_lease_context(after=first).iterate(file)]
    text = [line if isinstance(line, str) else line.decode() for line in rest]
    # Before any line was completed there is no place: the file's own counts.
    assert text[-12 + stop :] == [f"zähl {number}\n" for number in range(stop, 12)]
    assert len(text) == (12 - stop if stop else 13)


def test_a_temporary_file_is_a_file(make_lease_context: Any) -> None:
    """Python's own is a wrapper that iterates from where it is."""
    first = make_lease_context()
    with NamedTemporaryFile("w+") as file:
        file.write("1\n2\n3\n")
        file.seek(0)
        for line in first.iterate(file):
            if line == "2\n":
                break
        assert [*make_lease_context(after=first).iterate(file)] == ["2\n", "3\n"]


def test_a_file_that_does_not_know_its_offset_is_refused(
    lease_context: Any, tmp_path: Path
) -> None:
    """A reader of ``codecs`` reads ahead, and tells the offset where that ended."""
    (tmp_path / "text").write_text("1\n2\n")
    reader = codecs.getreader("utf-8")
    with (tmp_path / "text").open("rb") as file, pytest.raises(TypeError, match="an iterator goes"):
        lease_context.iterate(reader(file))


def test_a_file_that_cannot_seek_is_refused(lease_context: Any) -> None:
    """A pipe, for one."""

    class Pipe(io.BytesIO):
        def seekable(self) -> bool:
            return False

    with pytest.raises(TypeError, match="cannot seek, so a loop in it cannot be resumed; copy it"):
        lease_context.iterate(Pipe())


# Cursors.

instants = st.datetimes(
    timezones=st.none()
    | st.just(UTC)
    | st.just(timezone(timedelta(hours=5, minutes=30)))
    | st.just(ZoneInfo("Europe/Berlin")),
    allow_imaginary=False,
)
cursors = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | instants
    | st.dates()
    | st.uuids()
    | st.decimals(allow_nan=False),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text() | st.sampled_from(["$", "v"]), inner)
    ),
    max_leaves=10,
)


@settings(deadline=None)
@given(cursors)
def test_a_cursor_comes_back_as_it_was(cursor: Any) -> None:
    """Equal, and of the same types."""
    again = decode(encode(cursor))
    assert again == cursor
    assert repr(again) == repr(cursor).replace(", fold=1", "") or "fold=1" in repr(cursor)
    assert alike(cursor, again)


def test_a_cursor_without_types_of_its_own_is_stored_as_it_is() -> None:
    """So that people can read it."""
    assert encode({"id": [1, "a"]}) == {"id": [1, "a"]}
    at = datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"))
    assert encode((at, 5)) == {
        "$": "tuple",
        "v": [{"$": "datetime", "v": "2026-10-25T02:30:00+02:00", "zone": "Europe/Berlin"}, 5],
    }


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (1, 2, True),
        (1, 2.5, True),
        (1, Decimal(2), True),
        (1, "1", False),
        (1, True, False),
        ("a", None, True),
        ((1, "a"), (2, "b"), True),
        ((1, "a"), (2,), False),
        ((1, "a"), ("b", 2), False),
        ([1], [1, 2], True),
        ([1], (1,), False),
        ({"a": 1}, {"a": 2}, True),
        ({"a": 1}, {"b": 1}, False),
        (date(2026, 1, 1), datetime(2026, 1, 1, tzinfo=UTC), False),
        (UUID(int=1), UUID(int=2), True),
        (UUID(int=1), str(UUID(int=1)), False),
    ],
)
def test_shapes_of_cursors(one: Any, other: Any, *, expected: bool) -> None:
    """Two of one loop have the same types in the same places."""
    assert alike(one, other) is expected
    assert alike(other, one) is expected
