"""When an extender asks the broker for more time, for how much, and when it does not."""

from __future__ import annotations

import dataclasses
import gc
import logging
import pickle
import queue
import threading
from typing import TYPE_CHECKING

import pytest

from celery_lease.core.errors import AlreadyAttached, LeaseError, ReceiptHandleExpiredError
from celery_lease.core.heartbeat import Heartbeat
from celery_lease.settings import LeaseConfigError
from celery_lease.standalone.extender import LeaseExtender, LeaseExtenderConfig
from unit.fakes import PATIENCE, FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable

EXTENSION = 300
INTERVAL = 60.0


class Message:
    """A message that writes down when its visibility ends, as a broker would."""

    def __init__(self, clock: FakeClock, name: str = "m1") -> None:
        self.id = name
        self.clock = clock
        self.asked: list[float] = []  #: seconds of every call, failed ones included
        self.expiry: float | None = None
        self.during: Callable[[], object] = lambda: None  #: runs in every call
        self.failures: list[BaseException] = []  #: raised by the next calls
        self.threads: set[threading.Thread] = set()  #: who called
        self._calls: queue.SimpleQueue[float] = queue.SimpleQueue()

    def extend_visibility(self, seconds: float) -> None:
        self.asked.append(seconds)
        self.threads.add(threading.current_thread())
        try:
            self.during()
            if self.failures:
                raise self.failures.pop(0)
            self.expiry = self.clock.now() + seconds
        finally:
            self._calls.put(seconds)

    def next_call(self) -> float:
        """Return the seconds of the next call, waiting for a thread to make it."""
        return self._calls.get(timeout=PATIENCE)


class Held:
    """Something that a thread runs into and stays in until the test lets it go."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.released = threading.Event()

    def __call__(self) -> None:
        self.entered.set()
        assert self.released.wait(PATIENCE)


@pytest.fixture
def clock() -> FakeClock:
    """Return a clock that the test moves."""
    return FakeClock()


@pytest.fixture
def heartbeat(clock: FakeClock) -> Heartbeat:
    """Return a heartbeat on that clock."""
    return Heartbeat(clock=clock)


@pytest.fixture
def message(clock: FakeClock) -> Message:
    """Return a message that records what is asked for it."""
    return Message(clock)


@pytest.fixture
def extender(clock: FakeClock) -> LeaseExtender:
    """Return an extender on that clock, its thread waiting on it too."""
    config = LeaseExtenderConfig(interval=INTERVAL, extension=EXTENSION)
    return LeaseExtender(config, clock, waiter=clock.wait_for)


def started(work: Callable[[], object]) -> threading.Thread:
    """Return a running thread."""
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def joined(thread: threading.Thread) -> None:
    """Wait for the end of a thread."""
    thread.join(PATIENCE)
    assert not thread.is_alive()


def extender_threads() -> list[threading.Thread]:
    """Return the running threads of all extenders."""
    return [thread for thread in threading.enumerate() if "lease-extender" in thread.name]


# ------------------------------------------------------------------------------------ beats


def test_the_first_beat_extends_at_once_in_the_beating_thread(
    extender: LeaseExtender, message: Message, heartbeat: Heartbeat, clock: FakeClock
) -> None:
    """Breaks when the first beat waits for an interval or for a thread."""
    with extender.attach(message, heartbeat):
        assert message.asked == []
        heartbeat.beat()
        assert message.asked == [EXTENSION]
    assert message.expiry == clock.now() + EXTENSION
    assert message.threads == {threading.current_thread()}


def test_without_a_beat_nothing_is_ever_sent(
    extender: LeaseExtender, message: Message, heartbeat: Heartbeat, clock: FakeClock
) -> None:
    """Breaks when attaching, time or a beat before the block count as proof of work."""
    heartbeat.beat()
    with extender.attach(message, heartbeat):
        clock.advance(10 * EXTENSION)
        assert extender_threads() == []
    assert message.asked == []


def test_a_beat_a_full_interval_later_extends_at_once(
    extender: LeaseExtender, message: Message, heartbeat: Heartbeat, clock: FakeClock
) -> None:
    """Breaks when the rate limit lasts longer than the interval."""
    with extender.attach(message, heartbeat):
        for _ in range(3):
            heartbeat.beat()
            clock.advance(INTERVAL)
    assert message.asked == [EXTENSION] * 3


def test_work_that_beats_seldom_needs_no_thread(
    extender: LeaseExtender, message: Message, heartbeat: Heartbeat, clock: FakeClock
) -> None:
    """Breaks when a thread is started for beats that could extend themselves."""
    with extender.attach(message, heartbeat):
        for _ in range(3):
            heartbeat.beat()
            clock.advance(INTERVAL)
        assert extender_threads() == []


def test_a_beat_within_the_interval_counts_when_the_interval_ends(
    extender: LeaseExtender, message: Message, heartbeat: Heartbeat, clock: FakeClock
) -> None:
    """Breaks when a beat is forgotten for being early, or its age is not taken off."""
    start = clock.now()
    with extender.attach(message, heartbeat):
        heartbeat.beat()
        clock.advance(20)
        heartbeat.beat()
        clock.until_waiting(start + INTERVAL)
        assert message.asked == [EXTENSION]
        clock.advance(40)
        assert [message.next_call(), message.next_call()] == [EXTENSION, EXTENSION - 40]
        clock.until_waiting(None)
    assert message.expiry == start + 20 + EXTENSION


def test_the_last_of_several_early_beats_counts(
    extender: LeaseExtender, message: Message, heartbeat: Heartbeat, clock: FakeClock
) -> None:
    """Breaks when the expiry follows the first early beat, or every early beat is sent."""
    start = clock.now()
    with extender.attach(message, heartbeat):
        heartbeat.beat()
        for _ in range(5):
            clock.advance(10)
            heartbeat.beat()
        clock.until_waiting(start + INTERVAL)
        clock.advance(10)
        message.next_call()
        message.next_call()
        clock.until_waiting(None)
    assert message.asked == [EXTENSION, EXTENSION - 10]
    assert message.expiry == start + 50 + EXTENSION


def test_a_beat_that_was_counted_is_not_sent_again(
    extender: LeaseExtender, message: Message, heartbeat: Heartbeat, clock: FakeClock
) -> None:
    """Breaks when the thread goes on extending work that stopped beating."""
    start = clock.now()
    with extender.attach(message, heartbeat):
        heartbeat.beat()
        clock.advance(20)
        heartbeat.beat()
        clock.until_waiting(start + INTERVAL)
        clock.advance(40)
        clock.until_waiting(None)
        for _ in range(20):
            clock.advance(INTERVAL)
            clock.until_waiting(None)
        assert len(message.asked) == 2


def test_two_extensions_are_an_interval_apart_whoever_sends_them(
    extender: LeaseExtender, message: Message, heartbeat: Heartbeat, clock: FakeClock
) -> None:
    """Breaks when the thread's extension does not start a new interval for beats."""
    start = clock.now()
    with extender.attach(message, heartbeat):
        heartbeat.beat()
        clock.advance(59)
        heartbeat.beat()
        clock.until_waiting(start + 60)
        clock.advance(1)
        clock.until_waiting(None)
        clock.advance(59)
        heartbeat.beat()
        clock.until_waiting(start + 120)
        assert len(message.asked) == 2
        clock.advance(1)
        clock.until_waiting(None)
    assert message.asked == [EXTENSION, EXTENSION - 1, EXTENSION - 1]


def test_a_beat_at_the_end_of_the_interval_leaves_nothing_to_the_thread(
    clock: FakeClock, heartbeat: Heartbeat, message: Message
) -> None:
    """Breaks when beat and thread both send for the end of the same interval."""
    woken, released = threading.Event(), threading.Event()

    def late(
        condition: threading.Condition, done: Callable[[], bool], timeout: float | None
    ) -> bool:
        result = clock.wait_for(condition, done, timeout)
        if timeout == INTERVAL - 20:  # the thread overslept
            woken.set()
            condition.wait_for(released.is_set, PATIENCE)
        return result

    extender = LeaseExtender(LeaseExtenderConfig(), clock, waiter=late)
    with extender.attach(message, heartbeat):
        heartbeat.beat()
        clock.advance(20)
        heartbeat.beat()
        clock.until_waiting(clock.now() + 40)
        clock.advance(40)
        assert woken.wait(PATIENCE)
        heartbeat.beat()
        released.set()
        serving = extender._serving
        assert serving is not None
        with serving._turn:
            serving._turn.notify_all()
        clock.until_waiting(None)
    assert message.asked == [EXTENSION, EXTENSION]


def test_a_beat_older_than_the_extension_is_worth_nothing(
    extender: LeaseExtender, message: Message, heartbeat: Heartbeat, clock: FakeClock
) -> None:
    """Breaks when a host that was suspended asks for no or negative time, which releases."""
    start = clock.now()
    with extender.attach(message, heartbeat):
        heartbeat.beat()
        clock.advance(20)
        heartbeat.beat()
        clock.until_waiting(start + INTERVAL)
        clock.advance(EXTENSION)
        clock.until_waiting(None)
        assert message.asked == [EXTENSION]
        heartbeat.beat()
    assert message.asked == [EXTENSION, EXTENSION]


def test_an_interval_of_zero_extends_on_every_beat(message: Message, clock: FakeClock) -> None:
    """Breaks when a beat at the same clock reading is taken for an old one."""
    heartbeat = Heartbeat(clock=clock)
    extender = LeaseExtender(LeaseExtenderConfig(interval=0), clock)
    with extender.attach(message, heartbeat):
        for _ in range(3):
            heartbeat.beat()
    assert message.asked == [EXTENSION] * 3


def test_a_fresh_beat_asks_for_the_configured_number_on_a_real_clock(clock: FakeClock) -> None:
    """Breaks when microseconds of age make 299.99 of 300, which a whole-second receipt cuts."""
    message, heartbeat = Message(clock), Heartbeat()
    fresh = []
    for _ in range(20):  # an age is real time here: a busy host may once be slow
        with LeaseExtender().attach(message, heartbeat):
            heartbeat.beat()
        fresh.append(message.asked[-1])
    assert EXTENSION in fresh
    assert all(EXTENSION - PATIENCE < seconds <= EXTENSION for seconds in fresh)


def test_a_receipt_gets_whole_seconds_rounded_up(
    extender: LeaseExtender, message: Message, heartbeat: Heartbeat, clock: FakeClock
) -> None:
    """Breaks when a fraction is passed on, which SQS refuses, or when less than is due is asked."""
    with extender.attach(message, heartbeat):
        heartbeat.beat()
        clock.advance(1.5)
        heartbeat.beat()
        clock.until_waiting(clock.now() + INTERVAL - 1.5)
        clock.advance(INTERVAL - 1.5)
        clock.until_waiting(None)
    assert message.asked == [EXTENSION, EXTENSION - 58]  # the beat was 58.5 s old
    assert [type(seconds) for seconds in message.asked] == [int, int]


def test_a_beat_that_the_thread_will_count_takes_no_lock(
    extender: LeaseExtender, message: Message, heartbeat: Heartbeat, clock: FakeClock
) -> None:
    """Breaks when each beat of a busy loop pays for the lock that extensions need."""
    with extender.attach(message, heartbeat):
        heartbeat.beat()
        heartbeat.beat()
        clock.until_waiting(clock.now() + INTERVAL)
        assert extender._serving is not None
        with extender._serving._turn:
            joined(started(heartbeat.beat))


def test_a_real_thread_extends_at_the_end_of_a_real_interval(clock: FakeClock) -> None:
    """Breaks when the default waiter or the host's clock does not work with the thread."""
    message, heartbeat = Message(clock), Heartbeat()
    extender = LeaseExtender(LeaseExtenderConfig(interval=0.05, extension=300))
    with extender.attach(message, heartbeat):
        heartbeat.beat()
        heartbeat.beat()
        message.next_call()
        assert message.next_call() <= EXTENSION
    assert extender_threads() == []


# --------------------------------------------------------------------------- concurrent beats


def test_a_beat_during_an_extension_neither_waits_nor_extends(
    extender: LeaseExtender, message: Message, heartbeat: Heartbeat, clock: FakeClock
) -> None:
    """Breaks when the broker is called under a lock that beats need, or called twice at a time."""
    message.during = held = Held()
    with extender.attach(message, heartbeat):
        slow = started(heartbeat.beat)
        assert held.entered.wait(PATIENCE)
        clock.advance(INTERVAL)
        for thread in [started(heartbeat.beat) for _ in range(3)]:
            joined(thread)
        assert slow.is_alive()
        assert message.asked == [EXTENSION]
        held.released.set()
        joined(slow)


def test_a_beat_during_an_extension_is_counted_after_it(
    extender: LeaseExtender, message: Message, heartbeat: Heartbeat, clock: FakeClock
) -> None:
    """Breaks when a beat is forgotten for coming during an extension, or the thread spins then."""
    start = clock.now()
    message.during = held = Held()
    with extender.attach(message, heartbeat):
        slow = started(heartbeat.beat)
        assert held.entered.wait(PATIENCE)
        clock.advance(20)
        heartbeat.beat()
        clock.until_waiting(None)
        held.released.set()
        joined(slow)
        clock.until_waiting(start + INTERVAL)
        clock.advance(40)
        assert [message.next_call(), message.next_call()] == [EXTENSION, EXTENSION - 40]


def test_a_beat_that_was_counted_before_its_callback_came_extends_nothing(
    extender: LeaseExtender, message: Message, heartbeat: Heartbeat, clock: FakeClock
) -> None:
    """Breaks when a callback that another thread's extension overtook is taken for a new beat."""
    held = Held()
    slow_only = threading.local()
    heartbeat.add_callback(lambda: held() if hasattr(slow_only, "here") else None)

    def slow_beat() -> None:
        slow_only.here = True
        heartbeat.beat()

    with extender.attach(message, heartbeat):
        slow = started(slow_beat)
        assert held.entered.wait(PATIENCE)
        heartbeat.beat()
        clock.advance(INTERVAL)
        held.released.set()
        joined(slow)
        assert extender_threads() == []
    assert message.asked == [EXTENSION]


def test_many_threads_beating_at_once_extend_once_an_interval(
    extender: LeaseExtender, message: Message, heartbeat: Heartbeat, clock: FakeClock
) -> None:
    """Breaks when two threads find the same extension due, or more than one thread is started."""

    def beat() -> None:
        for _ in range(50):
            heartbeat.beat()

    with extender.attach(message, heartbeat):
        for rounds in range(1, 6):
            beating = [started(beat) for _ in range(4)]
            for thread in beating:
                joined(thread)
            assert len(message.asked) == rounds
            assert len(extender_threads()) == 1
            clock.until_waiting(clock.now() + INTERVAL)
            clock.advance(INTERVAL)
            # The rest of the last round's beats is sent by the thread; that starts an interval.
            clock.until_waiting(None)
            assert len(message.asked) == rounds + 1
            clock.advance(INTERVAL)
            message.asked.pop()


# ---------------------------------------------------------------------------------- failures


def test_an_expired_receipt_is_a_warning_and_the_work_goes_on(
    extender: LeaseExtender,
    message: Message,
    heartbeat: Heartbeat,
    clock: FakeClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Breaks when a lost receipt raises into the work, or is asked for again without a new beat."""
    message.failures = [ReceiptHandleExpiredError("m1")]
    with extender.attach(message, heartbeat):
        heartbeat.beat()
        clock.advance(INTERVAL)
        assert extender_threads() == []
        heartbeat.beat()
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "m1" in record.getMessage()
    assert record.exc_info is None
    assert message.asked == [EXTENSION, EXTENSION]


def test_another_error_is_logged_with_its_traceback_and_the_work_goes_on(
    extender: LeaseExtender,
    message: Message,
    heartbeat: Heartbeat,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Breaks when a broker's failure raises into the work or leaves no trace."""
    message.failures = [ConnectionError("broker is away")]
    with extender.attach(message, heartbeat):
        heartbeat.beat()
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert record.exc_info is not None
    assert "m1" in record.getMessage()
    assert "broker is away" in caplog.text


def test_a_failed_extension_is_tried_again_when_the_interval_ends(
    extender: LeaseExtender, message: Message, heartbeat: Heartbeat, clock: FakeClock
) -> None:
    """Breaks when a failure loses the beat, or every beat hammers a broker that is down."""
    start = clock.now()
    message.failures = [ConnectionError("broker is away")]
    with extender.attach(message, heartbeat):
        heartbeat.beat()
        clock.until_waiting(start + INTERVAL)
        assert message.asked == [EXTENSION]
        clock.advance(INTERVAL)
        clock.until_waiting(None)
    assert message.asked == [EXTENSION, EXTENSION - INTERVAL]
    assert message.expiry == start + EXTENSION


def test_beats_do_not_hammer_a_broker_that_is_down(
    extender: LeaseExtender, message: Message, heartbeat: Heartbeat, clock: FakeClock
) -> None:
    """Breaks when a failed call does not count against the rate limit."""
    message.failures = [ConnectionError("broker is away")]
    with extender.attach(message, heartbeat):
        for _ in range(100):
            heartbeat.beat()
        assert message.asked == [EXTENSION]
        clock.until_waiting(clock.now() + INTERVAL)


def test_an_interval_of_zero_tries_once_a_beat_and_then_backs_off(
    message: Message, clock: FakeClock
) -> None:
    """Breaks when the thread repeats a failed call at once: 33,755 calls in two seconds."""
    heartbeat = Heartbeat(clock=clock)
    extender = LeaseExtender(LeaseExtenderConfig(interval=0), clock, waiter=clock.wait_for)
    message.failures = [OSError("down")] * 100
    with extender.attach(message, heartbeat):
        for beats in (1, 2, 3):
            heartbeat.beat()
            assert len(message.asked) == beats  # each beat by itself, and in its own thread
            clock.until_waiting(pytest.approx(clock.now() + 0.1))  # the thread, since the first
        assert message.threads == {threading.current_thread()}
        clock.advance(0.1)
        pause = 0.3
        for calls in range(3, 12):
            clock.until_waiting(pytest.approx(clock.now() + pause))
            assert len(message.asked) == calls
            clock.advance(pause)
            pause = min(0.1 * 2**calls, EXTENSION / 5)
        clock.until_waiting(pytest.approx(clock.now() + EXTENSION / 5))
        assert len(message.asked) == 12


def test_a_new_beat_is_tried_before_the_retry_of_an_old_one(
    message: Message, clock: FakeClock
) -> None:
    """Breaks when a beat within the interval waits for the end of a back-off."""
    heartbeat = Heartbeat(clock=clock)
    extender = LeaseExtender(
        LeaseExtenderConfig(interval=1, extension=EXTENSION), clock, waiter=clock.wait_for
    )
    message.failures = [OSError("down")] * 6
    with extender.attach(message, heartbeat):
        heartbeat.beat()
        for pause in (1, 1, 1, 1, 1.6):  # the interval, then what a back-off has come to
            clock.until_waiting(pytest.approx(clock.now() + pause))
            clock.advance(pause)
        clock.until_waiting(pytest.approx(clock.now() + 3.2))
        assert len(message.asked) == 6
        heartbeat.beat()
        clock.until_waiting(pytest.approx(clock.now() + 1))
        clock.advance(1)
        assert message.next_call() is not None
        clock.until_waiting(None)
    assert len(message.asked) == 7


def test_success_is_only_a_debug_line(
    extender: LeaseExtender,
    message: Message,
    heartbeat: Heartbeat,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Breaks when every extension makes noise in production logs."""
    caplog.set_level(logging.DEBUG, logger="celery_lease")
    with extender.attach(message, heartbeat):
        heartbeat.beat()
    (record,) = caplog.records
    assert record.levelno == logging.DEBUG
    assert record.getMessage() == "extended message m1 by 300 s"


def test_an_interrupt_during_an_extension_ends_the_work_and_leaves_no_claim_behind(
    extender: LeaseExtender, message: Message, heartbeat: Heartbeat, clock: FakeClock
) -> None:
    """Breaks when Ctrl-C is swallowed, or leaving the block waits for the call that it ended."""
    message.failures = [KeyboardInterrupt()]
    with pytest.raises(KeyboardInterrupt), extender.attach(message, heartbeat):
        heartbeat.beat()
    with extender.attach(message, heartbeat):
        clock.advance(INTERVAL)
        heartbeat.beat()
    assert message.asked == [EXTENSION, EXTENSION]


# ---------------------------------------------------------------------------- end of the block


def test_after_the_block_no_beat_extends(
    extender: LeaseExtender, message: Message, heartbeat: Heartbeat, clock: FakeClock
) -> None:
    """Breaks when the heartbeat keeps the extender's callback."""
    with extender.attach(message, heartbeat):
        pass
    clock.advance(INTERVAL)
    heartbeat.beat()
    assert message.asked == []


def test_a_beat_that_is_owed_when_the_block_ends_is_not_sent(
    extender: LeaseExtender, message: Message, heartbeat: Heartbeat, clock: FakeClock
) -> None:
    """Breaks when a late tick hides a message that was handed back; the thread must be gone too."""
    start = clock.now()
    with extender.attach(message, heartbeat):
        heartbeat.beat()
        heartbeat.beat()
        clock.until_waiting(start + INTERVAL)
    assert extender_threads() == []
    clock.advance(INTERVAL)
    assert message.asked == [EXTENSION]


def test_a_beat_on_its_way_when_the_block_ends_extends_nothing(
    extender: LeaseExtender, message: Message, heartbeat: Heartbeat
) -> None:
    """Breaks when a beat that took its list of callbacks before the end still extends after it."""
    held = Held()
    heartbeat.add_callback(held)  # runs before the extender's
    with extender.attach(message, heartbeat):
        beating = started(heartbeat.beat)
        assert held.entered.wait(PATIENCE)
    held.released.set()
    joined(beating)
    assert message.asked == []


def test_the_end_of_the_block_waits_for_an_extension_under_way(
    extender: LeaseExtender, message: Message, heartbeat: Heartbeat, clock: FakeClock
) -> None:
    """Breaks when a message can be handed back while another thread is still extending it."""
    message.during = held = Held()
    left = threading.Event()

    def work() -> None:
        with extender.attach(message, heartbeat):
            beating.append(started(heartbeat.beat))
            assert held.entered.wait(PATIENCE)
        assert message.expiry is not None
        left.set()

    beating: list[threading.Thread] = []
    working = started(work)
    clock.until_waiting(clock.now() + 30)
    assert not left.is_set()
    held.released.set()
    joined(working)
    assert left.is_set()
    joined(beating[0])


def test_the_end_of_the_block_does_not_wait_for_ever(
    extender: LeaseExtender,
    message: Message,
    heartbeat: Heartbeat,
    clock: FakeClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Breaks when a broker call that hangs keeps finished work from going on, or does so unsaid."""
    message.during = held = Held()

    def work() -> None:
        with extender.attach(message, heartbeat):
            beating.append(started(heartbeat.beat))
            assert held.entered.wait(PATIENCE)

    beating: list[threading.Thread] = []
    working = started(work)
    clock.until_waiting(clock.now() + 30)
    clock.advance(30)
    joined(working)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "m1" in record.getMessage()
    other = Message(clock, "m2")
    with extender.attach(other, heartbeat):  # what is left behind does not bar the next message
        heartbeat.beat()
        held.released.set()
        joined(beating[0])
    assert (message.asked, other.asked) == ([EXTENSION], [EXTENSION])


def test_the_works_own_error_passes_through_and_ends_the_extending(
    extender: LeaseExtender, message: Message, heartbeat: Heartbeat
) -> None:
    """Breaks when the block swallows the work's error or stays attached after it."""
    with pytest.raises(ZeroDivisionError), extender.attach(message, heartbeat):
        raise ZeroDivisionError
    heartbeat.beat()
    assert message.asked == []


# ---------------------------------------------------------------------------- one at a time


def test_attaching_while_serving_raises_and_disturbs_nothing(
    extender: LeaseExtender, message: Message, heartbeat: Heartbeat, clock: FakeClock
) -> None:
    """Breaks when a second message replaces the first, or the refused attach detaches it."""
    second = Message(clock, "m2")
    with extender.attach(message, heartbeat):
        with pytest.raises(AlreadyAttached, match="m1"), extender.attach(second, heartbeat):
            pytest.fail("was attached")
        with pytest.raises(AlreadyAttached, match="m1"), extender.extend(second):
            pytest.fail("was attached")
        heartbeat.beat()
    assert (message.asked, second.asked) == ([EXTENSION], [])


def test_extending_while_serving_raises(
    extender: LeaseExtender, message: Message, heartbeat: Heartbeat
) -> None:
    """Breaks when the two ways to serve do not know of each other."""
    with (
        extender.extend(message),
        pytest.raises(AlreadyAttached),
        extender.attach(message, heartbeat),
    ):
        pytest.fail("was attached")


def test_one_message_after_another_each_begins_at_once(
    extender: LeaseExtender, heartbeat: Heartbeat, clock: FakeClock
) -> None:
    """Breaks when the rate limit of one message carries over to the next."""
    messages = [Message(clock, f"m{number}") for number in range(3)]
    for message in messages:
        with extender.attach(message, heartbeat):
            heartbeat.beat()
    assert [message.asked for message in messages] == [[EXTENSION]] * 3


def test_switched_off_it_does_nothing(
    message: Message, heartbeat: Heartbeat, clock: FakeClock
) -> None:
    """Breaks when a disabled extender extends, starts a thread or refuses a second message."""
    extender = LeaseExtender(LeaseExtenderConfig(enabled=False), clock)
    with extender.attach(message, heartbeat), extender.extend(message):
        heartbeat.beat()
        assert extender_threads() == []
    assert message.asked == []


# -------------------------------------------------------------------- work that cannot beat


def test_extending_without_beats_begins_at_once_and_goes_on_every_interval(
    extender: LeaseExtender, message: Message, clock: FakeClock
) -> None:
    """Breaks when the first extension waits, the rhythm is wrong or the work's thread does it."""
    with extender.extend(message):
        for _ in range(3):
            assert message.next_call() == EXTENSION
            clock.until_waiting(clock.now() + INTERVAL)
            clock.advance(INTERVAL - 1)
            clock.advance(1)
        assert message.next_call() == EXTENSION
        assert len(extender_threads()) == 1
        assert all(thread.daemon for thread in extender_threads())
    assert len(message.asked) == 4
    assert threading.current_thread() not in message.threads
    assert extender_threads() == []


def test_extending_without_beats_stops_when_the_receipt_expired(
    extender: LeaseExtender,
    message: Message,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Breaks when the thread goes on asking for a message that is somebody else's."""
    message.failures = [ReceiptHandleExpiredError("m1")]
    with extender.extend(message):
        message.next_call()
        for thread in extender_threads():
            joined(thread)
    assert message.asked == [EXTENSION]
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_extending_without_beats_survives_other_errors(
    extender: LeaseExtender, message: Message, clock: FakeClock
) -> None:
    """Breaks when one failed call ends the thread, or it tries again before the interval ends."""
    message.failures = [ConnectionError("broker is away")]
    with extender.extend(message):
        message.next_call()
        clock.until_waiting(clock.now() + INTERVAL)
        assert len(message.asked) == 1
        clock.advance(INTERVAL)
        assert message.next_call() == EXTENSION


def test_the_end_of_the_block_waits_for_the_threads_call(
    extender: LeaseExtender, message: Message, clock: FakeClock
) -> None:
    """Breaks when the thread can extend a message that was handed back after the block."""
    message.during = held = Held()

    def work() -> None:
        with extender.extend(message):
            assert held.entered.wait(PATIENCE)
        assert message.expiry is not None

    working = started(work)
    clock.until_waiting(clock.now() + 30)
    assert working.is_alive()
    held.released.set()
    joined(working)
    assert extender_threads() == []
    clock.advance(INTERVAL)
    assert message.asked == [EXTENSION]


def test_a_finished_block_keeps_nothing_alive(
    extender: LeaseExtender, heartbeat: Heartbeat, clock: FakeClock
) -> None:
    """Breaks when a consumer that runs for weeks collects every message it ever extended."""

    class Counted(Message):
        alive = 0

        def __del__(self) -> None:
            Counted.alive -= 1

    for _ in range(3):
        Counted.alive += 1
        message = Counted(clock)
        with extender.attach(message, heartbeat):
            heartbeat.beat()
        with extender.extend(message):
            pass
    del message
    gc.collect()
    assert Counted.alive == 0


# --------------------------------------------------------------------------- configuration


def test_the_defaults_are_the_documented_ones() -> None:
    """Breaks when a default changes without anybody deciding it."""
    config = LeaseExtender().config
    assert (config.interval, config.extension, config.enabled) == (60.0, 300, True)


def test_a_config_cannot_be_changed_behind_a_running_extender() -> None:
    """Breaks when the rules, checked once, can be broken later."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        LeaseExtenderConfig().interval = 200  # type: ignore[misc]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("interval", -1),
        ("interval", float("nan")),
        ("interval", float("inf")),
        ("interval", True),
        ("interval", "60"),
        ("interval", None),
        ("interval", 150),
        ("interval", 151),
        ("extension", 0),
        ("extension", -300),
        ("extension", float("nan")),
        ("extension", float("inf")),
        ("extension", True),
        ("extension", "300"),
        ("extension", 120),
        ("enabled", "no"),
        ("enabled", 1),
    ],
)
def test_a_config_that_breaks_a_rule_is_refused(name: str, value: object) -> None:
    """Breaks when a value is accepted that would lose leases, or the error does not name it."""
    values = {name: value}
    with pytest.raises(LeaseConfigError) as caught:
        LeaseExtenderConfig(**values)  # type: ignore[arg-type]
    assert isinstance(caught.value, LeaseError)
    assert name in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)  # noqa: S301


def test_all_that_is_wrong_with_a_config_is_said_at_once() -> None:
    """Breaks when a user has to fix one value to hear of the next."""
    with pytest.raises(LeaseConfigError) as caught:
        LeaseExtenderConfig(interval=-1, extension=0, enabled="no")  # type: ignore[arg-type]
    assert [fault.name for fault in caught.value.faults] == ["interval", "extension", "enabled"]


def test_its_values_are_taken_by_position_too() -> None:
    """Breaks when the documented order is not the one that calls rely on."""
    assert LeaseExtenderConfig(5.0, 30, False) == LeaseExtenderConfig(  # noqa: FBT003
        interval=5.0, extension=30, enabled=False
    )


def test_an_interval_above_a_third_of_the_extension_is_warned_about(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Breaks when a config that forgives no failed extension is taken in silence."""
    LeaseExtenderConfig(interval=100, extension=300)
    assert caplog.messages == []
    LeaseExtenderConfig(interval=101, extension=300)
    (line,) = caplog.messages
    assert "interval = 101 is above a third of extension (300)" in line
    assert "set interval to 60" in line


def test_extending_without_beats_needs_an_interval(message: Message) -> None:
    """Breaks when an interval of 0 makes a loop of extensions without a pause."""
    extender = LeaseExtender(LeaseExtenderConfig(interval=0))
    with (
        pytest.raises(LeaseConfigError, match=r"interval .*above 0 for extend\(\)"),
        extender.extend(message),
    ):
        pass
    assert message.asked == []
    with extender.attach(message, Heartbeat()):  # it was left free
        pass


def test_just_under_half_of_the_extension_is_allowed() -> None:
    """Breaks when the rule is stricter than documented."""
    assert LeaseExtenderConfig(interval=149.9, extension=300).interval == 149.9
