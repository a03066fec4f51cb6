"""The values that settings accept, and the description of wrong ones."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from difflib import get_close_matches
from math import isfinite
from reprlib import Repr
from typing import TYPE_CHECKING, Any

from celery_lease.core.words import plain

if TYPE_CHECKING:
    from collections.abc import Callable
    from enum import StrEnum

# A shorter duration has no use, and ten years are "never" for a task and still far from the limits
# of clocks, timers and 64-bit nanoseconds.
SHORTEST = 0.001
LONGEST = 10 * 365 * 86400

LONG_INT = 1024  #: bits; floats and readers have no use for longer integers


@dataclass(frozen=True, slots=True)
class Fault:
    """One broken rule: the setting, its value, the rule, and a remedy."""

    name: str
    value: object  #: as given, or its short repr; plain scalars only, so that it pickles
    rule: str
    hint: str = ""

    def __post_init__(self) -> None:
        """Replace a value that cannot be pickled safely."""
        if type(self.value) not in {bool, int, float, str, type(None)}:
            object.__setattr__(self, "value", Shown(shown(self.value)))

    def __str__(self) -> str:
        line = f"{self.name} = {shown(self.value)}: {self.rule}"
        return f"{line}; {self.hint}" if self.hint else line


class Shown(str):
    """The printed form of a value that is not kept; its repr has no quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        """Return the text itself."""
        return str(self)


class _OneLine(Repr):
    """A repr of bounded length that never fails."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 60

    def repr_int(self, x: int, level: int) -> str:
        # Python refuses to print integers of more than 4,300 digits.
        return super().repr_int(x, level) if x.bit_length() < LONG_INT else "<a very large int>"


def shown(value: object) -> str:
    """Return *value* as one bounded line for an error message."""
    return " ".join(_OneLine().repr(value).split())


@dataclass(frozen=True, slots=True)
class Accepted:
    """The values that one setting accepts."""

    rule: str  #: the text after "must be"
    admits: Callable[[object], bool]
    convert: Callable[[Any], Any]  #: converts an admitted value to the one in use
    choices: tuple[str, ...] = ()  #: the accepted words, if they are few
    unquoted: bool = True  #: no string is accepted

    def fault(self, name: str, value: object, default: object) -> Fault | None:
        """Return the fault of *value* for the setting *name*, or None."""
        if self.admits(value):
            return None
        usual = plain(default) if isinstance(default, float) else default
        hint = _hint(value, self) or f"leave it out for the default, {usual}"
        return Fault(name, value, f"must be {self.rule}", hint)


def _between(low: float, high: float) -> Callable[[object], bool]:
    # NaN compares false with everything, and an int of any size compares without overflow.
    return lambda value: (
        isinstance(value, (int, float)) and not isinstance(value, bool) and low <= value <= high
    )


def seconds(low: float = SHORTEST) -> Accepted:
    """Accept a duration of at least *low* seconds."""
    rule = f"a number of seconds from {low:g} to {LONGEST} (10 years)"
    return Accepted(rule, _between(low, LONGEST), float)


def or_none(accepted: Accepted) -> Accepted:
    """Accept None and the values of *accepted*."""
    return Accepted(
        f"None or {accepted.rule}",
        lambda value: value is None or accepted.admits(value),
        lambda value: None if value is None else accepted.convert(value),
    )


def whole(low: int, high: int) -> Accepted:
    """Accept an int from *low* to *high*."""
    inside = _between(low, high)
    rule = f"a whole number from {low} to {high}"
    return Accepted(rule, lambda value: isinstance(value, int) and inside(value), int)


def one_of(words: type[StrEnum]) -> Accepted:
    """Accept one of the words of an enumeration."""
    choices = tuple(word.value for word in words)
    return Accepted(
        "one of " + ", ".join(repr(word) for word in choices),
        # Another enumeration's word may equal a choice and still convert to something else.
        lambda value: (type(value) is str or isinstance(value, words)) and value in choices,
        words,
        choices,
    )


def text(rule: str, admits: Callable[[str], bool]) -> Accepted:
    """Accept strings that *admits* returns True for."""
    return Accepted(
        rule, lambda value: isinstance(value, str) and admits(value), str, unquoted=False
    )


FLAG = Accepted("True or False", lambda value: isinstance(value, bool), bool)


def _hint(value: object, accepted: Accepted) -> str:
    """Return a hint at the likely mistake in a wrong value, or an empty string."""
    if accepted.choices:
        word = value.lower() if isinstance(value, str) else ""
        near = get_close_matches(word, accepted.choices, n=1)
        return f"did you mean {near[0]!r}?" if near else ""
    if isinstance(value, timedelta):
        return f"durations are plain seconds: write {plain(value.total_seconds())}"
    if isinstance(value, str) and accepted.unquoted:
        return "strings are not converted: write the value without quotes"
    if isinstance(value, bool) and accepted is not FLAG:
        return "True and False are not numbers"
    if isinstance(value, float) and not isfinite(value):
        return "NaN and infinity are no durations: write the longest time that makes sense"
    return ""
