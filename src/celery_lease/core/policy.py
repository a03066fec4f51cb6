"""What one message's lease obeys, and the rules that make such a policy sound.

A policy is complete and consistent or it does not exist: :func:`faults_of` names every rule that a
set of values breaks, and callers build a :class:`LeasePolicy` with :func:`policy_from` only from
values without faults. Values are keyed by the field names of :class:`LeasePolicy`; what is absent
was left alone and follows ``extension``. Faults speak of settings: field ``interval`` is the
setting ``lease_interval``.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import timedelta
from difflib import get_close_matches
from enum import StrEnum
from math import isfinite
from reprlib import Repr
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

PREFIX = "lease_"  #: what turns a policy's field into a setting's name

# A lease of less than ten milliseconds has no time for a round trip to its broker; ten years are
# "never" for a task and still far from the limits of clocks, timers and 64-bit nanoseconds.
SHORTEST_EXTENSION = 0.01
SHORTEST = 0.001
LONGEST = 10 * 365 * 86400

LONG_INT = 1024  #: bits; no float and no reader takes a longer one

# Above this a number of deliveries cannot be meant.
MOST_DELIVERIES = 1_000_000


class Mode(StrEnum):
    """What counts as proof of progress."""

    HEARTBEAT = "heartbeat"  #: the task's own beats
    DAEMON = "daemon"  #: the living process
    OBSERVE = "observe"  #: as daemon, and report what heartbeat would have done


class OnLost(StrEnum):
    """What a task is told when its lease is gone."""

    ABORT = "abort"  #: the next beat raises LeaseLost
    CONTINUE = "continue"  #: only a log line; ack and result stay fenced


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasePolicy:
    """The rules of one lease. Durations are in seconds."""

    extension: float = 300.0  #: a beat keeps the message invisible for this long
    interval: float = 60.0  #: least time between two extensions of one message
    max_duration: float = 43200.0  #: no lease is held longer, beats or not
    mode: Mode = Mode.HEARTBEAT
    on_lost: OnLost = OnLost.ABORT
    watchdog_threshold: float | None = None  #: silence that ends the process; None: at expiry
    shutdown_timeout: float = 30.0  #: a stopping worker waits this long for the task
    interruptible: bool = False  #: the task hands over at shutdown
    hold_reserved: bool = True  #: waiting counts as progress while the worker's loop turns
    max_deliveries: int = 5  #: deliveries ended by loss before the message is dead-lettered


DEFAULTS: Mapping[str, object] = {field.name: field.default for field in fields(LeasePolicy)}


@dataclass(frozen=True, slots=True)
class Fault:
    """One broken rule: which setting, its value, the rule, and what to do about it."""

    name: str
    value: object  #: as given; shortened to its repr unless a plain scalar, so that it pickles
    rule: str
    hint: str = ""

    def __post_init__(self) -> None:
        """Keep only what can travel in a pickled error."""
        if type(self.value) not in {bool, int, float, str, type(None)}:
            object.__setattr__(self, "value", Shown(shown(self.value)))

    def __str__(self) -> str:
        """Return the fault in one line."""
        line = f"{self.name} = {shown(self.value)}: {self.rule}"
        return f"{line}; {self.hint}" if self.hint else line


class Shown(str):
    """The printed form of a value that is not kept; printed without quotes of its own."""

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
    """The values that one setting takes."""

    rule: str  #: goes on after "must be"
    admits: Callable[[object], bool]
    choices: tuple[str, ...] = ()  #: the words it takes, where those are few
    unquoted: bool = True  #: no string is ever right

    def fault(self, name: str, value: object, default: object) -> Fault | None:
        """Return what is wrong with *value* for the setting *name*, or None."""
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
    return Accepted(
        f"a number of seconds from {low:g} to {LONGEST} (10 years)", _between(low, LONGEST)
    )


def or_none(accepted: Accepted) -> Accepted:
    """Accept None beside what *accepted* takes."""
    return Accepted(
        f"None or {accepted.rule}", lambda value: value is None or accepted.admits(value)
    )


def whole(low: int, high: int) -> Accepted:
    """Accept an int from *low* to *high*."""
    inside = _between(low, high)
    return Accepted(
        f"a whole number from {low} to {high}",
        lambda value: isinstance(value, int) and inside(value),
    )


def one_of(words: type[StrEnum]) -> Accepted:
    """Accept one of the words of an enumeration."""
    choices = tuple(word.value for word in words)
    return Accepted(
        "one of " + ", ".join(repr(word) for word in choices),
        # Another enumeration's word may equal a choice and still convert to something else.
        lambda value: (type(value) is str or isinstance(value, words)) and value in choices,
        choices,
    )


FLAG = Accepted("True or False", lambda value: isinstance(value, bool))

#: What each field of a policy takes; relations between fields are :func:`_relations`.
ACCEPTED: Mapping[str, Accepted] = {
    "extension": seconds(SHORTEST_EXTENSION),
    "interval": seconds(),
    "max_duration": seconds(),
    "mode": one_of(Mode),
    "on_lost": one_of(OnLost),
    "watchdog_threshold": or_none(seconds()),
    "shutdown_timeout": seconds(),
    "interruptible": FLAG,
    "hold_reserved": FLAG,
    "max_deliveries": whole(1, MOST_DELIVERIES),
}


def _hint(value: object, accepted: Accepted) -> str:
    """Return what the author of a wrong value most likely has to do, or an empty string."""
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


def faults_of(values: Mapping[str, object]) -> list[Fault]:
    """Return every rule that *values* break, an empty list for a sound policy.

    Args:
        values: What was set on purpose, by field name; what is absent follows the extension.

    Raises:
        KeyError: A name is no field of :class:`LeasePolicy`; check names before.
    """
    checked = {
        name: ACCEPTED[name].fault(PREFIX + name, value, DEFAULTS[name])
        for name, value in values.items()
    }
    wrong = [fault for fault in checked.values() if fault]
    if checked.get("extension"):
        return wrong  # every relation would only repeat that the extension is wrong
    sound = {name: value for name, value in values.items() if not checked[name]}
    return wrong + list(_relations(sound))


def _relations(values: Mapping[str, object]) -> Iterator[Fault]:
    """Yield the rules between fields that *values* break, each sound by itself."""
    policy = policy_from(values)
    extension = plain(policy.extension)
    if not policy.interval < policy.extension / 2:
        yield Fault(
            "lease_interval",
            values["interval"],  # left alone, it follows the extension and breaks nothing
            f"must be less than half of lease_extension ({extension})",
            f"set lease_interval to {plain(policy.extension / 5)}, "
            f"or lease_extension to {plain(policy.interval * 5)}",
        )
    if not policy.shutdown_timeout <= policy.extension:
        yield Fault(
            "lease_shutdown_timeout",
            values["shutdown_timeout"],
            f"must be at most lease_extension ({extension}), "
            "or leases could end while the worker waits for their tasks",
            "lower lease_shutdown_timeout or raise lease_extension",
        )


def plain(value: float) -> str:
    """Return a number of seconds for people, 300 rather than 300.0."""
    return f"{value:.12g}"


def reaper_fault(interval: object, extension: object) -> Fault | None:
    """Return the fault of a sweep that is not more frequent than leases expire, or None.

    Values that are wrong in themselves are not judged here.
    """
    if not (seconds().admits(interval) and ACCEPTED["extension"].admits(extension)):
        return None
    if number(interval) < number(extension):
        return None
    return Fault(
        "lease_reaper_interval",
        interval,
        f"must be less than lease_extension ({plain(number(extension))})",
        "lower lease_reaper_interval or raise lease_extension",
    )


def policy_from(values: Mapping[str, object]) -> LeasePolicy:
    """Return the policy of *values*, with what was left alone scaled to a short extension.

    Args:
        values: Without faults, see :func:`faults_of`.
    """
    extension = number(values.get("extension", DEFAULTS["extension"]))
    merged: dict[str, object] = {**DEFAULTS, **scaled(extension), **values}
    threshold = merged["watchdog_threshold"]
    return LeasePolicy(
        extension=extension,
        interval=number(merged["interval"]),
        max_duration=number(merged["max_duration"]),
        mode=Mode(str(merged["mode"])),
        on_lost=OnLost(str(merged["on_lost"])),
        watchdog_threshold=None if threshold is None else number(threshold),
        shutdown_timeout=number(merged["shutdown_timeout"]),
        interruptible=bool(merged["interruptible"]),
        hold_reserved=bool(merged["hold_reserved"]),
        max_deliveries=int(number(merged["max_deliveries"])),
    )


def scaled(extension: float) -> dict[str, float]:
    """Return the durations of a policy that follow an extension of so many seconds."""
    return {
        "interval": min(number(DEFAULTS["interval"]), extension / 5),
        "shutdown_timeout": min(number(DEFAULTS["shutdown_timeout"]), extension),
    }


def number(value: object) -> float:
    """Return a value that was found to be a number, as a float."""
    if not isinstance(value, (int, float)):
        raise TypeError(f"not a number: {value!r}")
    return float(value)


def warnings_of(policy: LeasePolicy) -> list[str]:
    """Return what is allowed in *policy* but likely not meant, one line each."""
    found = []
    if policy.interval > policy.extension / 3:
        found.append(
            f"lease_interval = {plain(policy.interval)} is above a third of lease_extension "
            f"({plain(policy.extension)}): one failed extension leaves no time for a second try; "
            f"set lease_interval to {plain(policy.extension / 5)}"
        )
    if policy.max_duration < policy.extension:
        found.append(
            f"lease_max_duration = {plain(policy.max_duration)} is below lease_extension "
            f"({plain(policy.extension)}): tasks are aborted before their first lease runs out"
        )
    threshold = policy.watchdog_threshold
    if policy.mode is Mode.HEARTBEAT and threshold is not None and threshold > policy.extension:
        found.append(
            f"lease_watchdog_threshold = {plain(threshold)} is above lease_extension "
            f"({plain(policy.extension)}): a stuck process lives on after its lease; leave it at "
            "None to end it at the lease's expiry"
        )
    return found
