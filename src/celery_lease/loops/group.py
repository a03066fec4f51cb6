"""Loops that live and end together.

A group ends when its last loop has returned, when it is asked to, or when a loop fails: half a
consumer is worse than none, because nothing outside notices. It does not start anything again;
that is for what runs the process.
"""

from __future__ import annotations

import logging
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from .coordinator import STOPPING, ShutdownCoordinator

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from .runnable import Runnable

logger = logging.getLogger(__name__)

#: Seconds between two looks of the waiting thread. A signal that arrives when the main thread is
#: about to wait, and has just looked for signals, is handled only when that wait ends (CPython 3.11
#: to 3.13): without a bound, never.
LOOK_INTERVAL = 0.5


class LoopGroup:
    """Runs each loop in a thread; itself a :class:`Runnable`, so groups can be nested.

    Example::

        LoopGroup([mails, videos], shutdown_timeout=20).run()

    Attributes:
        loops: The loops, in the order given.
        shutdown_timeout: Seconds that all loops together have to end.
    """

    def __init__(
        self,
        loops: Iterable[Runnable],
        shutdown_timeout: float = 30.0,
        *,
        signals: Collection[int] = STOPPING,
    ) -> None:
        """Start nothing yet.

        Args:
            loops: At least one.
            shutdown_timeout: Seconds that all loops together have to end once the group stops.
            signals: Taken while :meth:`run` is at work in the main thread, then given back.

        Raises:
            ValueError: There is no loop.
        """
        self.loops = tuple(loops)
        self.shutdown_timeout = shutdown_timeout
        self._signals = signals
        if not self.loops:
            raise ValueError("a LoopGroup needs at least one loop")
        # Guards all that follows; loops' own methods are called without it.
        self._turn = threading.Condition()
        self._begun = False
        self._asked = False
        self._running = False
        self._alive: set[int] = set()  # positions in loops whose thread has not ended
        self._failure: BaseException | None = None  # the first one

    @property
    def running(self) -> bool:
        """Whether :meth:`run` is at work, or has left a loop behind that did not end in time."""
        return self._running or bool(self._alive)

    def run(self) -> None:
        """Run all loops and return when all have ended.

        They are shut down together when the process is told to stop (:class:`ShutdownCoordinator`),
        when :meth:`shutdown` is called, or when one of them raises. A loop that returns by itself
        leaves the others alone. A group runs once.

        Raises:
            BaseException: What the first failing loop raised; what others raised is logged.
            TimeoutError: Nothing failed, and loops have not ended in time. Their threads are
                daemons: end the process.
            RuntimeError: It was run before.
        """
        self._begin()
        try:
            with self._listening(ShutdownCoordinator.get()):
                late = self._run_loops()
        finally:
            self._running = False
        if self._failure is not None:
            raise self._failure
        if late:
            raise TimeoutError(f"{self._names(late)} did not end in {self.shutdown_timeout:g} s")

    def shutdown(self, timeout: float | None = None) -> bool:
        """Ask :meth:`run` to shut the loops down and return; before it, to start none.

        Args:
            timeout: Seconds to wait for the loops' end; None: the group's ``shutdown_timeout``.

        Returns:
            Whether all have ended.
        """
        self._ask()
        with self._turn:
            seconds = self.shutdown_timeout if timeout is None else timeout
            return self._turn.wait_for(lambda: not self._alive, seconds)

    def _ask(self) -> None:
        with self._turn:
            self._asked = True
            self._turn.notify_all()

    def _begin(self) -> None:
        with self._turn:
            if self._begun:
                raise RuntimeError("a LoopGroup runs once; make a new one")
            self._begun = self._running = True

    @contextmanager
    def _listening(self, coordinator: ShutdownCoordinator) -> Iterator[None]:
        """Hear of the process's shutdown; in the main thread, also have signals cause it."""
        main = threading.current_thread() is threading.main_thread()
        taken = coordinator.signals.install(self._signals) if main else frozenset()
        coordinator.register(self._ask)
        try:
            yield
        finally:
            coordinator.unregister(self._ask)
            coordinator.signals.restore(taken)

    def _run_loops(self) -> list[int]:
        try:
            self._start()
            self._wait_for_a_reason_to_stop()
        finally:
            late = self._stop_loops()
        return late

    def _start(self) -> None:
        for position in range(len(self.loops)):
            with self._turn:
                if self._asked:
                    return
                self._alive.add(position)
            try:
                self._thread(self._drive, position).start()
            except RuntimeError as exc:  # the system has no more threads
                self._ended(position, exc)

    def _drive(self, position: int) -> None:
        failure: BaseException | None = None
        try:
            self.loops[position].run()
        except BaseException as exc:  # noqa: BLE001  (run() raises it in its own thread)
            failure = exc
        self._ended(position, failure)

    def _ended(self, position: int, failure: BaseException | None) -> None:
        if failure is not None and not self._is_the_first(failure):
            # Before the group counts it as ended: then the process may be gone any moment.
            logger.error("%s failed as well", self._names([position]), exc_info=failure)
        with self._turn:
            self._alive.discard(position)
            self._turn.notify_all()

    def _is_the_first(self, failure: BaseException) -> bool:
        with self._turn:
            if self._failure is None:
                self._failure = failure
            return self._failure is failure

    def _wait_for_a_reason_to_stop(self) -> None:
        with self._turn:
            while not (self._asked or self._failure or not self._alive):
                self._turn.wait(LOOK_INTERVAL)

    def _stop_loops(self) -> list[int]:
        """Shut down all that is alive, at the same time, and return what is left at the end."""
        self._ask()
        with self._turn:
            alive = sorted(self._alive)
        for position in alive:
            self._thread(self._shut_down, position).start()
        with self._turn:
            self._turn.wait_for(lambda: not self._alive, self.shutdown_timeout)
            late = sorted(self._alive)
        if late:
            logger.error("%s did not end in %g s", self._names(late), self.shutdown_timeout)
        return late

    def _shut_down(self, position: int) -> None:
        try:
            self.loops[position].shutdown(timeout=self.shutdown_timeout)
        except Exception:
            logger.exception("%s could not be shut down", self._names([position]))

    def _thread(self, target: Callable[[int], None], position: int) -> threading.Thread:
        name = f"{type(self.loops[position]).__name__}-{position}{target.__name__}"
        return threading.Thread(target=target, args=(position,), name=name, daemon=True)

    def _names(self, positions: Iterable[int]) -> str:
        return ", ".join(f"loop {each} ({self.loops[each]!r})" for each in positions)
