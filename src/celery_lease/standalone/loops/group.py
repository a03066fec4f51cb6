"""Runs loops that start and end together.

A group ends when its last loop has returned, when it is asked to, or when a loop fails: with only
some of its loops running, no observer would notice. It restarts nothing; that is for the
supervisor of the process.
"""

from __future__ import annotations

import logging
import threading
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Self

from celery_lease.core.clock import Clock, SystemClock
from celery_lease.health_server import HealthServer

from .coordinator import STOPPING, ShutdownCoordinator
from .runnable import accepted
from .watch import GroupHealth, LoopWatch, stack_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
    from types import TracebackType

    from .runnable import Runnable

logger = logging.getLogger(__name__)

#: Seconds between two checks of the waiting thread. A signal that arrives when the main thread is
#: about to wait, and has just checked for signals, is handled only when that wait ends (CPython
#: 3.11 to 3.13): without a limit, never.
LOOK_INTERVAL = 0.5


class LoopGroup:
    """Runs each loop in a thread; a group is a :class:`Runnable`, so groups can be nested.

    Example::

        with LoopGroup([mails, videos], shutdown_timeout=20, health_port=8000) as group:
            group.run()

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
        health_host: str = "127.0.0.1",
        health_port: int | None = None,
        watchdog_threshold: float | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Prepare; nothing is started yet.

        Args:
            loops: The loops, at least one.
            shutdown_timeout: Seconds that all loops together have to end once the group stops.
            signals: Handled while :meth:`run` is at work in the main thread, and restored
                afterwards.
            health_host: The address for ``/health/live``, ``/health/ready`` and ``/metrics``.
            health_port: Its port, 0 for any free one; None: no server.
            watchdog_threshold: Seconds without a beat after which a loop counts as failed; None:
                never. Loops without an attribute ``heartbeat`` are not watched.
            clock: None: the host's clock.

        Raises:
            ValueError: There is no loop, or none with a heartbeat for ``watchdog_threshold``.
        """
        self.loops = tuple(loops)
        self.shutdown_timeout = shutdown_timeout
        self._signals = signals
        self._health_address = (health_host, health_port)
        if not self.loops:
            raise ValueError("a LoopGroup needs at least one loop")
        self._watch = LoopWatch(self.loops, watchdog_threshold, clock or SystemClock())
        # Guards everything below; the loops' own methods are called without it.
        self._turn = threading.Condition()
        self._begun = False
        self._asked = False
        self._running = False
        self._alive: set[int] = set()  # positions in loops whose thread has not ended
        self._threads: dict[int, threading.Thread] = {}
        self._failure: BaseException | None = None  # the first one

    @property
    def running(self) -> bool:
        """Whether :meth:`run` is at work, or has left a loop behind that did not end in time."""
        return self._running or bool(self._alive)

    def __enter__(self) -> Self:
        """Return the group, for :meth:`run`."""
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Shut the loops down, and wait for their end."""
        self.shutdown()

    def run(
        self,
        *,
        install_signals: bool = True,
        max_iterations: int | None = None,
        visibility_timeout: int = 300,
        wait_time_seconds: int = 20,
    ) -> None:
        """Run all loops and return when all have ended.

        They are shut down together when the process has to stop (:class:`ShutdownCoordinator`),
        when :meth:`shutdown` is called, or when one of them raises. A loop that returns by itself
        does not affect the others. A loop that is silent beyond the watchdog's threshold has
        failed: its stack is logged, and its thread, a daemon, is left behind. A group runs once.

        Args:
            install_signals: Handle the group's signals, in the main thread.
            max_iterations: Passed to each loop's ``run`` with such a parameter, like the next two:
                the number of its rounds, None for no end.
            visibility_timeout: Seconds that a message it receives stays invisible.
            wait_time_seconds: Seconds that it waits for a message, as in SQS's long polls.

        Raises:
            BaseException: The first failure of a loop; further ones are logged.
            TimeoutError: A loop is silent beyond the watchdog's threshold; or without a failure,
                loops have not ended in time. Their threads are daemons: end the process.
            RuntimeError: It has run before.
        """
        self._begin()
        options = {
            "max_iterations": max_iterations,
            "visibility_timeout": visibility_timeout,
            "wait_time_seconds": wait_time_seconds,
        }
        signals = self._signals if install_signals else ()
        try:
            with self._listening(ShutdownCoordinator.get(), signals), self._answering_probes():
                late = self._run_loops(options)
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
    def _listening(
        self, coordinator: ShutdownCoordinator, signals: Collection[int]
    ) -> Iterator[None]:
        """Stop at the process's shutdown; in the main thread, also make signals cause it."""
        main = threading.current_thread() is threading.main_thread()
        taken = coordinator.signals.install(signals) if main else frozenset()
        coordinator.register(self._ask)
        try:
            yield
        finally:
            coordinator.unregister(self._ask)
            coordinator.signals.restore(taken)

    @contextmanager
    def _answering_probes(self) -> Iterator[None]:
        host, port = self._health_address
        if port is None:
            yield
            return
        try:
            server = HealthServer(host, port, self.health)
        except OSError as exc:
            logger.warning(
                "no health server on %s port %d: %s; choose another health_port", host, port, exc
            )
            yield
            return
        logger.info("health server on %s port %d", host, server.port)
        try:
            yield
        finally:
            server.close()

    def health(self) -> GroupHealth:
        """Return the answer to probes.

        Live: no loop is silent beyond the watchdog's threshold. Ready: in addition all loops run,
        and the group does not stop.
        """
        with self._turn:
            alive, asked = set(self._alive), self._asked
        live = asked or not any(map(self._watch.is_stuck, alive))
        return GroupHealth(
            live=live,
            ready=live and not asked and len(alive) == len(self.loops),
            stopping=asked,
            loops=[
                {
                    "loop": repr(loop),
                    "running": position in alive,
                    "silent": None
                    if (silence := self._watch.silence(position)) is None
                    else round(silence, 3),
                }
                for position, loop in enumerate(self.loops)
            ],
        )

    def _run_loops(self, options: Mapping[str, object]) -> list[int]:
        self._watch.start()
        try:
            self._start(options)
            self._wait_for_a_reason_to_stop()
        finally:
            late = self._stop_loops()
        return late

    def _start(self, options: Mapping[str, object]) -> None:
        for position in range(len(self.loops)):
            thread = self._thread(partial(self._drive, options), position)
            with self._turn:
                if self._asked:
                    return
                self._alive.add(position)
                self._threads[position] = thread
            try:
                thread.start()
            except RuntimeError as exc:  # the system has no more threads
                self._ended(position, exc)

    def _drive(self, options: Mapping[str, object], position: int) -> None:
        failure: BaseException | None = None
        try:
            run = self.loops[position].run
            run(**accepted(run, options))
        except BaseException as exc:  # noqa: BLE001  (run() raises it in its own thread)
            failure = exc
        self._ended(position, failure)

    def _ended(self, position: int, failure: BaseException | None) -> None:
        if failure is not None and not self._is_the_first(failure):
            # Before the group counts it as ended: the process may exit at any moment after that.
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
            while not (self._asked or self._failure or not self._alive or self._find_stuck()):
                self._turn.wait(LOOK_INTERVAL)

    def _find_stuck(self) -> bool:
        """Whether a loop is stuck; that becomes the group's failure. The caller holds the lock."""
        for position in filter(self._watch.is_stuck, sorted(self._alive)):
            self._failure = TimeoutError(
                f"{self._names([position])} has not beaten for {self._watch.silence(position):.1f} "
                f"s, its watchdog_threshold is {self._watch.threshold:g} s"
            )
            stack = stack_of(self._threads.get(position))
            logger.critical("%s; it is at\n%s", self._failure, stack)
            return True
        return False

    def _stop_loops(self) -> list[int]:
        """Shut down all running loops at the same time; return those that did not end."""
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
        name = f"{type(self.loops[position]).__name__}-{position}"
        return threading.Thread(target=target, args=(position,), name=name, daemon=True)

    def _names(self, positions: Iterable[int]) -> str:
        return ", ".join(f"loop {each} ({self.loops[each]!r})" for each in positions)
