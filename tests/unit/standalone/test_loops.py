"""How the loops of one process start, stop, fail and hear of signals, together."""

from __future__ import annotations

import http.client
import json
import logging
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from celery_lease import Heartbeat, LoopGroup, Runnable, ShutdownCoordinator
from harness.waiting import eventually, free_port
from unit.fakes import PATIENCE, FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: Stands for SIGTERM: nothing else in the process cares for it.
SIGNAL = signal.SIGUSR2


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    """Give every test a coordinator of its own, and the next one the signals back."""
    before = {number: signal.getsignal(number) for number in (SIGNAL, signal.SIGTERM)}
    yield
    ShutdownCoordinator.uninstall()
    assert {number: signal.getsignal(number) for number in before} == before


class Loop:
    """A loop that works until it is told to stop; a test can make it fail, return or not listen."""

    def __init__(self, *, deaf: bool = False) -> None:
        self.deaf = deaf
        self.started = threading.Event()
        self.asked = threading.Event()
        self.thread: threading.Thread | None = None
        self.timeout: float | None = None
        self._orders: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._ended = threading.Event()

    def run(self) -> None:
        self.thread = threading.current_thread()
        self.started.set()
        try:
            self._orders.get()()
        finally:
            self._ended.set()

    def order(self, action: Callable[[], object] = lambda: None) -> None:
        """Have the loop do one thing, and return if that does not raise."""
        self._orders.put(action)

    def fail(self, error: BaseException) -> None:
        def throw() -> None:
            raise error

        self.order(throw)

    def shutdown(self, timeout: float) -> bool:
        self.timeout = timeout
        self.asked.set()
        if not self.deaf:
            self.order()
        return self._ended.wait(timeout)

    @property
    def running(self) -> bool:
        return self.started.is_set() and not self._ended.is_set()


class Run:
    """A group at work in a thread of its own."""

    def __init__(self, group: LoopGroup) -> None:
        self.group = group
        self._outcome: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        try:
            self.group.run()
        except BaseException as exc:  # noqa: BLE001
            self._outcome.put(exc)
        else:
            self._outcome.put(None)

    def outcome(self) -> BaseException | None:
        """Wait for the end and return what was raised."""
        return self._outcome.get(timeout=PATIENCE)


def started(*loops: Loop, shutdown_timeout: float = PATIENCE) -> Run:
    """Return a group of loops that all run."""
    run = Run(LoopGroup(loops, shutdown_timeout))
    assert all(loop.started.wait(PATIENCE) for loop in loops)
    return run


# ---------------------------------------------------------------------------------- coordinator


def test_callbacks_run_once_each_and_the_last_registered_first() -> None:
    """What was built last is taken down first, and a second trigger finds nothing to do."""
    coordinator, calls = ShutdownCoordinator(), []
    for name in ("connection", "consumer", "server"):
        coordinator.register(lambda name=name: calls.append(name))
    assert not coordinator.triggered
    coordinator.trigger()
    coordinator.trigger()
    assert coordinator.triggered
    assert calls == ["server", "consumer", "connection"]


def test_a_failing_callback_is_logged_and_the_others_run(caplog: pytest.LogCaptureFixture) -> None:
    """One consumer that cannot stop does not keep the others from stopping."""
    coordinator, calls = ShutdownCoordinator(), []
    coordinator.register(lambda: calls.append("first"))
    coordinator.register(lambda: 1 / 0)
    with caplog.at_level(logging.ERROR, "celery_lease.standalone.loops"):
        coordinator.trigger()
    assert calls == ["first"]
    [record] = caplog.records
    assert record.exc_info is not None
    assert record.exc_info[0] is ZeroDivisionError


def test_a_callback_registered_after_the_trigger_runs_at_once() -> None:
    """A consumer that is built during the shutdown still hears of it."""
    coordinator, calls = ShutdownCoordinator(), []
    coordinator.trigger()
    coordinator.register(lambda: calls.append("late"))
    assert calls == ["late"]


def test_an_unregistered_callback_does_not_run_and_unknown_ones_are_no_error() -> None:
    """A consumer that has ended may take its callback back whether it has run or not."""
    coordinator, calls = ShutdownCoordinator(), []

    def callback() -> None:
        calls.append("called")

    coordinator.register(callback)
    coordinator.register(callback)
    coordinator.unregister(callback)
    coordinator.trigger()
    coordinator.unregister(callback)
    assert calls == ["called"]


def test_callbacks_run_without_the_lock() -> None:
    """A callback may use the coordinator, in its thread or in another one that it waits for."""
    coordinator, calls = ShutdownCoordinator(), []

    def callback() -> None:
        other = threading.Thread(target=lambda: coordinator.register(lambda: calls.append("in")))
        other.start()
        other.join(PATIENCE)
        coordinator.trigger()
        calls.append("out")

    coordinator.register(callback)
    coordinator.trigger()
    assert calls == ["in", "out"]


def test_each_callback_runs_once_however_many_threads_trigger() -> None:
    """Signals, health checks and failing loops may all trigger at the same time."""
    coordinator, calls = ShutdownCoordinator(), queue.SimpleQueue()
    for number in range(200):
        coordinator.register(lambda number=number: calls.put(number))
    barrier = threading.Barrier(4)

    def trigger() -> None:
        barrier.wait(PATIENCE)
        coordinator.trigger()

    threads = [threading.Thread(target=trigger) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert sorted(calls.get_nowait() for _ in range(calls.qsize())) == list(range(200))


def test_there_is_one_coordinator_for_the_process_until_it_is_uninstalled() -> None:
    """Whoever asks, with signals or without, gets the same one."""
    first = ShutdownCoordinator.get()
    assert ShutdownCoordinator.install([SIGNAL]) is first
    ShutdownCoordinator.uninstall()
    assert ShutdownCoordinator.get() is not first


def test_a_signal_sets_the_flag_at_once_and_runs_the_callbacks_in_a_thread() -> None:
    """The interrupted code may hold any lock, so nothing is done in its thread."""
    coordinator = ShutdownCoordinator.install([SIGNAL])
    threads: queue.SimpleQueue[threading.Thread] = queue.SimpleQueue()
    coordinator.register(lambda: threads.put(threading.current_thread()))
    signal.raise_signal(SIGNAL)
    assert coordinator.triggered
    assert threads.get(timeout=PATIENCE) is not threading.main_thread()


def test_a_signal_that_interrupts_the_holder_of_the_lock_does_not_deadlock() -> None:
    """The handler runs in the main thread in the middle of register() and takes no lock."""
    coordinator = ShutdownCoordinator.install([SIGNAL])
    called = threading.Event()
    coordinator.register(called.set)
    with coordinator._lock:
        signal.raise_signal(SIGNAL)
        signal.raise_signal(SIGNAL)
        assert coordinator.triggered
        assert not called.is_set()
    assert called.wait(PATIENCE)


def test_installing_in_another_thread_fails_and_says_where_to_do_it() -> None:
    """Python allows handlers in the main thread only; its own message does not help."""
    errors: queue.SimpleQueue[Exception] = queue.SimpleQueue()

    def install() -> None:
        try:
            ShutdownCoordinator.install([SIGNAL])
        except RuntimeError as exc:
            errors.put(exc)

    threading.Thread(target=install).start()
    assert "in the main thread only: call install() there" in str(errors.get(timeout=PATIENCE))


def test_a_signal_that_nobody_can_handle_is_an_error_and_is_not_given_back() -> None:
    """SIGKILL stays what it is, and the others that were asked for can still be given back."""
    with pytest.raises(OSError, match="Invalid argument"):
        ShutdownCoordinator.install([signal.SIGKILL])
    ShutdownCoordinator.uninstall()


def test_a_handler_that_somebody_set_later_survives_uninstalling() -> None:
    """What is not ours any more is not put back."""
    before = signal.getsignal(SIGNAL)
    ShutdownCoordinator.install([SIGNAL])
    signal.signal(SIGNAL, theirs := lambda *_: None)
    ShutdownCoordinator.uninstall()
    assert signal.getsignal(SIGNAL) is theirs
    signal.signal(SIGNAL, before)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_dies_of_the_signal_as_if_nothing_had_been_installed() -> None:
    """A child by ``multiprocessing`` has no thread that could act; it must stay stoppable."""
    ShutdownCoordinator.install([SIGNAL])
    pid = os.fork()
    if pid == 0:
        signal.raise_signal(SIGNAL)
        os._exit(0)
    status = os.waitpid(pid, 0)[1]
    assert os.waitstatus_to_exitcode(status) == -SIGNAL
    assert not ShutdownCoordinator.get().triggered


# ----------------------------------------------------------------------------------------- group


def test_each_loop_runs_in_a_thread_of_its_own_until_all_have_returned() -> None:
    """A loop that returns by itself leaves the others at work."""
    loops = Loop(), Loop()
    run = started(*loops)
    assert len({loop.thread for loop in loops} | {threading.current_thread()}) == 3
    assert run.group.running
    loops[0].order()
    assert loops[0]._ended.wait(PATIENCE)
    assert loops[1].running
    assert run.group.running
    loops[1].order()
    assert run.outcome() is None
    assert not run.group.running
    assert not any(loop.asked.is_set() for loop in loops)


def test_shutting_the_group_down_shuts_all_loops_down() -> None:
    """Each gets the whole time, because all are asked at the same time."""
    loops = Loop(), Loop()
    run = started(*loops)
    assert run.group.shutdown(timeout=PATIENCE)
    assert run.outcome() is None
    assert [loop.timeout for loop in loops] == [PATIENCE, PATIENCE]


def test_a_loop_that_is_slow_to_stop_does_not_delay_the_others() -> None:
    """The second one is asked while the first one is still being waited for."""
    slow, quick = Loop(deaf=True), Loop()
    run = started(slow, quick)
    assert not run.group.shutdown(timeout=0)
    assert slow.asked.wait(PATIENCE)
    assert quick.asked.wait(PATIENCE)
    slow.order()
    assert run.outcome() is None


def test_a_failing_loop_shuts_the_others_down_and_its_error_is_raised() -> None:
    """Half a consumer is worse than none: nobody outside would notice."""
    failing, other = Loop(), Loop()
    run = started(failing, other)
    failing.fail(error := ConnectionError("broker"))
    assert run.outcome() is error
    assert other.asked.is_set()
    assert not other.running


def test_of_two_failures_the_first_is_raised_and_the_second_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The second one is mostly a consequence, and still nothing is swallowed."""
    first, second = Loop(), Loop(deaf=True)
    run = started(first, second)
    first.fail(error := ConnectionError("broker"))
    assert second.asked.wait(PATIENCE)
    second.fail(consequence := ValueError("channel"))
    assert run.outcome() is error
    [record] = [entry for entry in caplog.records if entry.exc_info]
    assert record.exc_info is not None
    assert record.exc_info[1] is consequence


def test_a_loop_that_does_not_stop_in_time_is_left_behind_with_an_error() -> None:
    """The caller gets its thread back, and knows that the process had better end."""
    deaf = Loop(deaf=True)
    run = started(deaf, shutdown_timeout=0.05)
    run.group.shutdown(timeout=0)
    error = run.outcome()
    assert isinstance(error, TimeoutError)
    assert "loop 0" in str(error)
    assert run.group.running
    assert deaf.thread is not None
    assert deaf.thread.daemon
    deaf.order()


class OnRecord(logging.Handler):
    """Does something when the code under test logs, and keeps the text."""

    def __init__(self, action: Callable[[], object]) -> None:
        super().__init__()
        self.action = action
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text += self.format(record)
        self.action()


def test_a_shutdown_that_raises_is_logged_and_the_others_are_shut_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A loop's own mistake costs nobody else the orderly end."""
    broken, other = Loop(), Loop()
    monkeypatch.setattr(broken, "shutdown", lambda timeout: 1 / 0 * timeout)
    handler = OnRecord(broken.order)
    logger = logging.getLogger("celery_lease.standalone.loops.group")
    logger.addHandler(handler)
    try:
        run = started(broken, other)
        assert run.group.shutdown()
        assert run.outcome() is None
    finally:
        logger.removeHandler(handler)
    assert "could not be shut down" in handler.text
    assert "ZeroDivisionError" in handler.text
    assert other.asked.is_set()


def test_a_group_that_was_shut_down_before_starts_nothing() -> None:
    """A signal during the start-up is not forgotten."""
    loop = Loop()
    group = LoopGroup([loop])
    assert group.shutdown(timeout=0)
    group.run()
    assert not loop.started.is_set()


def test_a_group_in_a_process_that_is_shutting_down_starts_nothing() -> None:
    """The same for the process: a second group of it does not come to life at the end."""
    ShutdownCoordinator.get().trigger()
    loop = Loop()
    LoopGroup([loop]).run()
    assert not loop.started.is_set()


def test_triggering_the_coordinator_ends_the_group() -> None:
    """Anything that decides that the process must stop stops all groups."""
    loop = Loop()
    run = started(loop)
    ShutdownCoordinator.get().trigger()
    assert run.outcome() is None
    assert loop.asked.is_set()


def test_a_signal_ends_a_group_in_the_main_thread_which_then_gives_the_signal_back() -> None:
    """Nothing has to be installed for the usual case; afterwards all is as it was."""
    before = signal.getsignal(SIGNAL)
    loop = Loop()

    def send() -> None:
        loop.started.wait(PATIENCE)
        os.kill(os.getpid(), SIGNAL)

    threading.Thread(target=send).start()
    LoopGroup([loop], PATIENCE, signals=[SIGNAL]).run()
    assert loop.asked.is_set()
    assert signal.getsignal(SIGNAL) == before


def test_a_group_leaves_signals_installed_that_it_found_installed() -> None:
    """Who installed them before may still want them."""
    ShutdownCoordinator.install([SIGNAL])
    installed = signal.getsignal(SIGNAL)
    loop = Loop()
    loop.order()
    LoopGroup([loop], signals=[SIGNAL]).run()
    assert signal.getsignal(SIGNAL) == installed


def test_a_group_is_a_loop_for_another_group() -> None:
    """Groups nest: it has what the protocol asks for, and the inner one stops with the outer."""
    inner, beside = Loop(), Loop()
    group = LoopGroup([inner], PATIENCE)
    assert isinstance(group, Runnable)
    run = Run(LoopGroup([group, beside], PATIENCE))
    assert inner.started.wait(PATIENCE)
    assert beside.started.wait(PATIENCE)
    beside.fail(error := ValueError("beside"))
    assert run.outcome() is error
    assert inner.asked.is_set()
    assert not group.running


def test_a_group_runs_once_and_never_empty() -> None:
    """Both are mistakes of the program, and both are said."""
    with pytest.raises(ValueError, match="at least one loop"):
        LoopGroup([])
    loop = Loop()
    loop.order()
    group = LoopGroup([loop])
    group.run()
    with pytest.raises(RuntimeError, match="runs once"):
        group.run()


# ------------------------------------------------------------------------- what loops are given


class Rounds(Loop):
    """A loop that takes what a group passes on."""

    def run(  # type: ignore[override]
        self, max_iterations: int | None = None, *, visibility_timeout: int, wait_time_seconds: int
    ) -> None:
        self.given = (max_iterations, visibility_timeout, wait_time_seconds)


def test_loops_are_given_what_they_take(caplog: pytest.LogCaptureFixture) -> None:
    """Breaks when a loop without parameters is given some, or one in a nested group none."""
    rounds, nested, plain = Rounds(), Rounds(), Loop()
    plain.order()
    LoopGroup([rounds, LoopGroup([nested]), plain]).run(
        max_iterations=3, visibility_timeout=60, wait_time_seconds=5
    )
    assert rounds.given == nested.given == (3, 60, 5)
    assert caplog.messages == []


def test_left_alone_they_are_given_the_defaults() -> None:
    """Breaks when the documented defaults are not those in force."""
    rounds = Rounds()
    LoopGroup([rounds]).run()
    assert rounds.given == (None, 300, 20)


def test_without_signals_the_handlers_stay() -> None:
    """Breaks when a program that handles signals itself finds its handlers replaced."""
    before, seen = signal.getsignal(SIGNAL), []
    loop = Loop()
    loop.order(lambda: seen.append(signal.getsignal(SIGNAL)))
    LoopGroup([loop], signals=[SIGNAL]).run(install_signals=False)
    assert seen == [before]


def test_leaving_the_block_shuts_the_loops_down() -> None:
    """Breaks when an error around run() leaves loops behind."""
    loop = Loop()
    with LoopGroup([loop], PATIENCE) as group:
        run = Run(group)
        assert loop.started.wait(PATIENCE)
    assert not loop.running
    assert run.outcome() is None


# ------------------------------------------------------------------------------ watchdog, probes


class Beating(Loop):
    """A loop with a heartbeat on a clock that the test moves."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self.heartbeat = Heartbeat(clock)


def test_a_silent_loop_fails_the_group_and_its_stack_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Breaks when a loop that hangs goes unnoticed, or its beating neighbour is left running."""
    clock = FakeClock()
    hangs, beats = Beating(clock), Beating(clock)
    hangs.deaf = True
    clock.advance(1000)  # before the start: no silence of theirs
    run = Run(LoopGroup([hangs, beats], 0.1, watchdog_threshold=10, clock=clock))
    assert hangs.started.wait(PATIENCE)
    assert beats.started.wait(PATIENCE)
    clock.advance(9)
    beats.heartbeat.beat()
    assert run.group.health().live
    clock.advance(2)
    outcome = run.outcome()
    assert isinstance(outcome, TimeoutError)
    assert "has not beaten for 11.0 s, its watchdog_threshold is 10 s" in str(outcome)
    assert str(outcome).startswith("loop 0 ")
    assert beats.asked.is_set()
    critical = [record.getMessage() for record in caplog.records if record.levelname == "CRITICAL"]
    assert len(critical) == 1
    assert "self._orders.get()" in critical[0]  # where it hangs
    hangs.order()


@pytest.mark.parametrize("threshold", [0, -1.0, float("nan")])
def test_a_threshold_that_is_no_time_is_refused(threshold: float) -> None:
    """Breaks when a watchdog is set that would end everything, or nothing."""
    with pytest.raises(ValueError, match=r"watchdog_threshold must be above 0"):
        LoopGroup([Beating(FakeClock())], watchdog_threshold=threshold)


def test_a_watchdog_without_anything_to_watch_is_refused() -> None:
    """Breaks when loops without heartbeats are believed to be watched."""
    with pytest.raises(ValueError, match=r"nothing to watch.*celery_lease\.Heartbeat"):
        LoopGroup([Loop()], watchdog_threshold=10)


def probe(port: int, path: str) -> tuple[int, dict[str, Any]]:
    """Ask a group's health server."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def test_probes_tell_whether_the_loops_run_and_beat() -> None:
    """Breaks when an orchestrator sends work to a group that is half gone or stops."""
    clock, port = FakeClock(), free_port()
    beats, plain = Beating(clock), Loop()
    group = LoopGroup([beats, plain], health_port=port, watchdog_threshold=10, clock=clock)
    run = Run(group)
    assert beats.started.wait(PATIENCE)
    assert plain.started.wait(PATIENCE)
    clock.advance(3)
    status, said = probe(port, "/health/ready")
    assert (status, said["ready"], said["stopping"]) == (200, True, False)
    assert [(each["running"], each["silent"]) for each in said["loops"]] == [
        (True, 3),
        (True, None),
    ]
    assert probe(port, "/health/live")[0] == 200
    plain.order()  # it returns by itself
    eventually(lambda: probe(port, "/health/ready")[0] == 503, within=PATIENCE)
    assert probe(port, "/health/live")[0] == 200
    beats.order()
    assert run.outcome() is None
    with pytest.raises(ConnectionRefusedError):
        probe(port, "/health/live")


def test_a_taken_port_is_a_warning_and_the_loops_run(caplog: pytest.LogCaptureFixture) -> None:
    """Breaks when work stands still because nobody can ask for its health."""
    loop = Loop()
    loop.order()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        LoopGroup([loop], health_port=port).run()
    assert loop.started.is_set()
    (line,) = caplog.messages
    assert f"no health server on 127.0.0.1 port {port}" in line
    assert "choose another health_port" in line


DYING = """
import threading
from celery_lease import LoopGroup

class Loop:
    running, stop = True, threading.Event()

    def __init__(self, dies):
        self.dies = dies

    def run(self):
        if self.dies:
            raise OSError("the queue is gone")
        self.stop.wait()

    def shutdown(self, timeout):
        self.stop.set()
        return True

LoopGroup([Loop(dies=True), Loop(dies=False)]).run()
"""


def test_a_process_whose_loop_died_exits_with_a_failure() -> None:
    """Breaks when an orchestrator takes half a consumer's end for a good one."""
    done = subprocess.run(
        [sys.executable, "-c", DYING], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert done.stderr.rstrip().endswith("OSError: the queue is gone")
