"""Checks whether a function beats often enough, by its longest silence and the place of that.

Silence is counted as for a lease, from beat to beat, on the test's clock while that runs: it is the
time that really passed, plus the time by which the test moved the clock in place of slow work. A
quiet period is no silence until its declared end.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from celery_lease.core.errors import LeaseLost
from celery_lease.core.policy import Mode
from celery_lease.core.words import plain
from celery_lease.task.current import entered
from celery_lease.task.injection import Injection
from celery_lease.task.task import LeasedTask
from celery_lease.testing.contexts import Beat, RecordedContext, policy_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from celery_lease.testing.clock import LeaseClock

#: The share of a lease that may be silent: at half of it a worker warns of the task, and a machine
#: half as fast as the test's still keeps its leases.
SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Limit:
    """The longest silence allowed."""

    seconds: float
    reason: str


@dataclass(frozen=True, slots=True)
class Silence:
    """The time between two beats, or between a beat and the start or the end."""

    before: Beat
    after: Beat

    @property
    def seconds(self) -> float:
        return self.after.at - self.before.at


class BeatAssertion:
    """The type of the fixture ``assert_beats_within``."""

    def __init__(self, clock: LeaseClock) -> None:
        self._clock = clock

    def __call__(
        self,
        function: Callable[..., Any],
        /,
        *args: Any,
        within: float | None = None,
        context: RecordedContext | None = None,
        **kwargs: Any,
    ) -> Any:
        """Call *function*, assert that it is never silent for too long, and return its result.

        Args:
            function: A leased task, or any function that beats: it gets the context as a task
                would, and by ``current_context()``.
            args: Its arguments, without the context.
            within: The longest silence allowed, in seconds. By default half of the lease of the
                task or, for a plain function, of *context*; or the ``lease_watchdog_threshold`` if
                that is shorter.
            context: The context; by default a new one with the task's settings.
            kwargs: Further arguments. Use ``functools.partial`` for those with the names above.

        Raises:
            AssertionError: It was silent for longer.
            ValueError: There is no limit.
        """
        __tracebackhide__ = True
        task = function if isinstance(function, LeasedTask) else None
        limit = _limit(task, within, context)
        context = context or RecordedContext(self._clock, policy_of(task))
        earlier, lost = len(context.beats), None
        with self._clock.running():
            begun = Beat(context.passed)
            try:
                result = _call(function, args, kwargs, context)
            except LeaseLost as exc:  # perhaps of its own silence
                lost = exc
            ended = Beat(context.passed)
        marks = [begun, *context.beats[earlier:], ended]
        silence = _longest(marks, limit.seconds, context.quiet_periods)
        if silence is not None:
            text = _message(function, silence, limit, marks, lost=lost is not None)
            raise AssertionError(text) from lost
        if lost is not None:
            raise lost
        return result


def _call(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    context: RecordedContext,
) -> Any:
    """Call a task or a function with the context; a task takes the one that is entered."""
    if not isinstance(function, LeasedTask):
        with suppress(ValueError):  # a built-in function may have no signature, and no context
            injection = Injection.of(function, skip_first=False)
            args, kwargs = injection.arguments(args, kwargs, context)
    with entered(context):
        return function(*args, **kwargs)


def _limit(task: LeasedTask | None, within: float | None, context: RecordedContext | None) -> Limit:
    """Return the given limit, or else the limit from the settings.

    Raises:
        ValueError: There are no settings, or they need no beats.
    """
    if within is not None:
        return Limit(within, "as the test says")
    if task is not None:
        policy = policy_of(task)
    elif context is not None:
        policy = context.policy
    else:
        raise ValueError("a plain function has no lease: say within=, or give a context that has")
    if policy.mode is not Mode.HEARTBEAT:
        raise ValueError(f"with lease_mode = {policy.mode.value!r} no beat is needed: say within=")
    half = Limit(
        policy.extension * SHARE, f"half of its lease_extension, {plain(policy.extension)} s"
    )
    threshold = policy.watchdog_threshold
    if threshold is not None and threshold < half.seconds:
        return Limit(threshold, "its lease_watchdog_threshold")
    return half


def _longest(
    marks: Sequence[Beat], limit: float, quiet: Sequence[tuple[float, float]]
) -> Silence | None:
    """Return the longest silence above the limit, or None."""
    found = []
    for before, after in pairwise(marks):
        covered = max((end for began, end in quiet if began <= after.at), default=-math.inf)
        if after.at > max(before.at + limit, covered):
            found.append(Silence(before, after))
    # Of several equally long ones the first: measured times are never quite the same.
    return max(found, key=lambda silence: round(silence.seconds, 1), default=None)


def _message(
    function: Callable[..., Any],
    silence: Silence,
    limit: Limit,
    marks: Sequence[Beat],
    *,
    lost: bool,
) -> str:
    name = getattr(function, "name", None) or getattr(function, "__qualname__", repr(function))
    return (
        f"{name} was silent for {_short(silence.seconds)} s, allowed are {plain(limit.seconds)} s "
        f"({limit.reason})\n"
        f"  from {_described(silence.before, marks, lost=lost)}\n"
        f"  to   {_described(silence.after, marks, lost=lost)}\n"
        "Beat more often there, or announce a call that cannot beat by context.quiet(seconds)."
    )


def _short(seconds: float) -> str:
    return plain(round(seconds, 2))


def _described(mark: Beat, marks: Sequence[Beat], *, lost: bool) -> str:
    """Return a description of one end of a silence."""
    number = next(index for index, each in enumerate(marks) if each is mark)
    last = len(marks) - 1
    name = "the start" if number == 0 else "the end" if number == last else f"beat {number}"
    parts = [f"{name} at {_short(mark.at)} s"]
    if mark.done is not None:
        parts.append(
            plain(mark.done) + (f" of {plain(mark.total)}" if mark.total else "") + " done"
        )
    if mark.note is not None and mark.note not in mark.steps:
        parts.append(f"note {mark.note!r}")
    if mark.steps:
        parts.append("in step " + " / ".join(map(repr, mark.steps)))
    if number == last and lost:
        parts.append("where the lease was lost")
    if mark.where:
        parts.append(mark.where)
    return ", ".join(parts)
