"""One loop that resumes.

Invariant: the saved place is never behind an item that is not completed. An item is completed when
the next one is asked for; if its body was left by ``break``, by an error or by a beat that ends the
run, it is not completed, and comes again.
"""

from __future__ import annotations

import logging
import math
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from celery_lease.board import SINCE
from celery_lease.core.clock import host_seconds
from celery_lease.core.words import ordinal
from celery_lease.task import gate
from celery_lease.task.checkpoints import CheckpointError, CheckpointMismatch, Superseded
from celery_lease.task.iterating.cursors import alike
from celery_lease.task.iterating.places import Mark, Place, Places
from celery_lease.task.iterating.sources import Items, Rows, Source, source_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from celery_lease.task.checkpoints import Checkpoints
    from celery_lease.task.context import ToolContext

T = TypeVar("T")

logger = logging.getLogger(__name__)

#: The name of a loop without one.
UNNAMED = "loop"

NOT_SAVED = "loop %r of task %s: place not saved, tried again in %g s: %s"
LEFT_UNSAVED = "task %s ended a loop whose place is not saved, the next run repeats more: %s"
ANEW = "loop %r of task %s begins anew: %s"


def iterate(
    context: ToolContext,
    source: Callable[[Any], Iterable[T]] | Iterable[T],
    *,
    cursor: Callable[[T], Any] | None,
    every: Any,
    name: Any,
    total: float | None,
    on_mismatch: str,
) -> Iterator[T]:
    """Return the loop of ``context.iterate``, with the same arguments.

    Raises:
        TypeError: The type of the source, the cursor or the name is wrong.
        ValueError: The value of *every* or *on_mismatch* is not allowed.
    """
    if isinstance(every, bool) or not isinstance(every, (int, float)) or not 0 <= every < math.inf:
        raise ValueError(f"every is a number of seconds, 0 or more, not {every!r}")
    if on_mismatch not in ("raise", "restart"):
        raise ValueError(f'on_mismatch is "raise" or "restart", not {on_mismatch!r}')
    if name is not None and (not isinstance(name, str) or not name):
        raise TypeError(f"name is a text that names the loop within its task, not {name!r}")
    return Loop(
        context,
        source_of(source, cursor),
        name=name or UNNAMED,
        every=every,
        total=total,
        restarts=on_mismatch == "restart",
    ).run()


class Loop(Generic[T]):
    """A loop of one run of a task; for one thread."""

    def __init__(
        self,
        context: ToolContext,
        source: Source[T],
        *,
        name: str,
        every: float,
        total: float | None,
        restarts: bool,
    ) -> None:
        self._context, self._source, self._name = context, source, name
        self._every, self._total, self._restarts = every, total, restarts
        self._checkpoints: Checkpoints = context._checkpoints
        self._home: dict[str, Place] = {}
        self._failed = False  # the last save failed

    def run(self) -> Iterator[T]:
        """Yield the remaining items; save the place of the loop now and then and at its end."""
        places, place = self._begin()
        places.enter(place)
        try:
            yield from self._items()
        except BaseException:
            if self._outer is None:  # otherwise the outer loop is left, too, or goes on and saves
                keep(self._context)
            raise
        else:
            self._finish()
        finally:
            places.leave(place)
            if self._outer is None:
                place.spent, place.entered_at = place.seconds(), None
                self._report_since(math.nan)

    def _items(self) -> Iterator[T]:
        context, places, place, source = self._context, self._places, self._place, self._source
        self._report_begin()
        for item in self._remaining():
            yield item
            self._check_nesting()
            done = place.mark.done + 1
            place.mark = Mark(source.at, done, {})
            places.changes += 1
            context.beat(done if self._outer is None else None)
            if host_seconds() - places.saved_at >= self._every:
                self._save_in_passing()
                context.beat()

    # ------------------------------------------------------------------------------ the beginning

    def _begin(self) -> tuple[Places, Place]:
        """Find the place to begin at, and keep it where the next run looks for it."""
        self._places = places = self._read()
        self._outer = places.here()
        self._home = home = places.top if self._outer is None else self._outer.mark.inside
        self._place = place = Place(self._source.by, size=self._source.size())
        stored = home.get(self._name)
        if stored is not None and stored.begun:
            raise ValueError(
                f"task {self._context.task_id} has begun a loop {self._name!r} already; give each "
                "loop a name of its own by name=, so that the next run knows whose place is whose"
            )
        if stored is not None:
            place.run = stored.run + 1
        reason = self._mismatch(stored)
        if reason is not None:
            self._refuse(reason)
        elif stored is not None:
            place.mark, place.spent = stored.mark, stored.spent
        home[self._name] = place
        places.saved_at = places.saved_at or host_seconds()
        return places, place

    def _read(self) -> Places:
        try:
            return self._checkpoints.places()
        except Superseded:
            gate.superseded(self._context)
            return Places()  # the run goes on without its lease

    def _mismatch(self, stored: Place | None) -> str | None:
        """Return the reason why the loop cannot resume at *stored*; cursors are compared later."""
        if stored is None:
            home = self._home.items()
            others = [name for name, each in home if not (each.begun or each.mark.over)]
            if others:
                return f"it has no place, and loop {others[0]!r}, which has not begun here, has one"
            return None
        by, size = self._source.by, self._place.size
        if stored.by != by:
            return f"its place was saved as a {stored.by}, and its source goes by {by} now"
        had = max(stored.size or 0, stored.mark.done)
        if by == Items.by and size is not None and size < had:
            return f"its source had {had:g} items and has {size:g}: a position is another item's"
        return None

    def _refuse(self, reason: str) -> None:
        """Raise for a mismatch, or log it if the loop may begin from the start."""
        task_id = self._context.task_id
        if not self._restarts:
            raise CheckpointMismatch(task_id, self._name, reason)
        logger.warning(ANEW, self._name, task_id, reason, extra=self._context._fields)

    def _report_begin(self) -> None:
        """Beat, and report the completed items, if this loop reports progress."""
        if self._outer is not None:
            self._context.beat()
            return
        place = self._place
        known = (each for each in (self._total, place.size) if each is not None)
        total = next(known, math.nan)  # nan: an earlier loop's total does not apply
        note = f"{ordinal(place.run)} run" if place.run > 1 else None
        self._context.beat(place.mark.done, total, note)
        place.entered_at = host_seconds()
        self._report_since(place.entered_at - place.spent)

    def _report_since(self, seconds: float) -> None:
        """Report when the loop would have begun, had it done all its items in one run."""
        context = self._context
        if context._board.owns(context._slot):
            context._record[SINCE] = seconds

    def _remaining(self) -> Iterator[T]:
        """Yield the items after the place, if their cursors have the shape of the saved one."""
        place, source = self._place, self._source
        at = place.mark.at
        items = source.after(at)
        if at is None or source.by != Rows.by:
            yield from items
            return
        for first in items:
            if alike(at, source.at):
                yield first
                yield from items
                return
            items.close()
            self._refuse(f"its last cursor was {at!r}, and the next item's is {source.at!r}")
            place.mark, place.spent = Mark(None, 0, {}), 0.0
            self._report_begin()
            yield from source.after(None)
            return

    # ----------------------------------------------------------------------- on the way, at the end

    def _check_nesting(self) -> None:
        """Check that the outer loop is still at the item in which this loop was begun.

        Raises:
            RuntimeError: It is not; the message has the remedy.
        """
        outer = self._outer
        if outer is not None and outer.mark.inside is not self._home:
            raise RuntimeError(
                f"loop {self._name!r} was begun within an item of another loop, which has gone on "
                "to the next one: loops that resume cannot run side by side, as by zip(); iterate "
                "over one and look up the other's items, or let the source of one loop join them"
            )

    def _save_in_passing(self) -> None:
        """Save; a failure is logged, and the next save tries again."""
        try:
            self._save()
        except CheckpointError as exc:
            about, extra = (
                (self._name, self._context.task_id, self._every, exc),
                self._context._fields,
            )
            if self._failed:
                logger.debug(NOT_SAVED, *about, extra=extra)
            else:
                logger.warning(NOT_SAVED, *about, extra=extra)
            self._failed = True
        else:
            self._failed = False

    def _save(self) -> None:
        self._places.saved_at = host_seconds()  # the time of this attempt
        try:
            self._checkpoints.save_places()
        except Superseded:
            gate.superseded(self._context)

    def _finish(self) -> None:
        """Save that the loop is over; within another loop the outer one's next save does that."""
        place, mark = self._place, self._place.mark
        if mark.done and not mark.over:
            place.mark = mark._replace(over=True)
            self._places.changes += 1
        if self._outer is None and self._places.changed:
            self._save()


def keep(context: ToolContext) -> None:
    """Save the places of the loops of a run that ends early, or that has left a loop early.

    Errors are only logged: another one may be on its way, or there is no code to catch it. The
    places of a later run are kept.
    """
    places = context._checkpoints.open_places
    if places is None or not places.changed:
        return
    try:
        with suppress(Superseded):
            context._checkpoints.save_places()
    except (CheckpointError, TypeError) as exc:
        logger.warning(LEFT_UNSAVED, context.task_id, exc, extra=context._fields)
