"""The life of a lease: every transition, and what must hold whatever happens in between."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from freezegun import freeze_time
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from celery_lease.core.delivery import Answer, Claim
from celery_lease.core.lease import Extension, Lease, State
from celery_lease.core.loss import LossReason
from celery_lease.core.policy import LeasePolicy

if TYPE_CHECKING:
    from collections.abc import Callable

START = 1000.0
EXTENSION, INTERVAL = 100.0, 20.0


def lease_of(**policy: float) -> Lease:
    """Return a lease that was claimed at :data:`START`."""
    values = {"extension": EXTENSION, "interval": INTERVAL, **policy}
    claim = Claim(
        tag="tag#1",
        token=7,
        queue="celery",
        deliveries=1,
        losses=0,
        asked_at=START,
        seconds=values["extension"],
    )
    return Lease(claim, LeasePolicy(**values), task_id="id", name="task")  # type: ignore[arg-type]


def running(**policy: float) -> Lease:
    """Return a lease whose task started one second after it was claimed."""
    lease = lease_of(**policy)
    lease.start(START + 1)
    return lease


def due(lease: Lease, now: float) -> Extension | None:
    """Return the extension that is due at ``now``, as the keeper begins it; None: nothing is."""
    return lease.begin_extension(now) if lease.is_due(now) else None


def extended(lease: Lease, now: float, answer: Answer = Answer.HELD) -> Extension:
    """Send what is due at ``now`` and apply the answer."""
    extension = due(lease, now)
    assert extension is not None
    lease.answered(extension, answer)
    return extension


def ended(state: State) -> Lease:
    """Return a lease that has come to a state."""
    lease = lease_of()
    if state is not State.RESERVED:
        lease.start(START + 1)
    if state is State.LOST:
        lease.lose(LossReason.SUPERSEDED)
    elif state in (State.COMPLETED, State.RELEASED):
        lease.end(state)
    return lease


def test_a_lease_lives_by_a_clock_that_is_moved_for_a_day() -> None:
    """Breaks when an extension, an expiry or max_duration drifts over thousands of extensions."""
    day = 86400.0
    with freeze_time("2027-12-31 12:00:00") as frozen:  # the date changes under it, and the year
        begin = time.monotonic()
        claim = replace(lease_of().claim, asked_at=begin)
        policy = LeasePolicy(extension=EXTENSION, interval=INTERVAL, max_duration=day)
        lease = Lease(claim, policy, task_id="id", name="task")
        lease.start(begin)
        while time.monotonic() + EXTENSION < begin + day:
            frozen.tick(INTERVAL)
            lease.see(time.monotonic())
            assert extended(lease, time.monotonic()).renewal.seconds == pytest.approx(EXTENSION)
            assert lease.deadline == pytest.approx(time.monotonic() + EXTENSION)
        while time.monotonic() + INTERVAL < begin + day:  # it beats, but the limit is near
            frozen.tick(INTERVAL)
            lease.see(time.monotonic())
            assert lease.expiry() == pytest.approx(begin + day)
            assert not lease.expire(time.monotonic())
        frozen.tick(INTERVAL + 0.001)
        assert lease.expire(time.monotonic())
        assert lease.lost is LossReason.MAX_DURATION


ACTIONS: dict[str, Callable[[Lease], object]] = {
    "start": lambda lease: lease.start(START + 2),
    "expire": lambda lease: lease.expire(START + 1000),
    "lose": lambda lease: lease.lose(LossReason.SUPERSEDED),
    "complete": lambda lease: lease.end(State.COMPLETED),
    "release": lambda lease: lease.end(State.RELEASED),
}
LIVE = {
    ("reserved", "start"): State.RUNNING,
    ("running", "start"): State.RUNNING,
    **{
        (state, action): State.LOST
        for state in ("reserved", "running")
        for action in ("expire", "lose")
    },
    **{(state, "complete"): State.COMPLETED for state in ("reserved", "running")},
    **{(state, "release"): State.RELEASED for state in ("reserved", "running")},
}


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("state", State)
def test_every_state_has_its_transitions_and_no_others(state: State, action: str) -> None:
    """Breaks when a lease that ended, above all one that was lost, comes back or ends twice.

    Without the question ``is_held`` in ``Lease.end``, LOST became RELEASED when its task ended.
    """
    lease = ended(state)
    ACTIONS[action](lease)
    assert lease.state is LIVE.get((state.value, action), state)
    assert lease.is_held == (lease.state in (State.RESERVED, State.RUNNING))


def test_a_claimed_lease_expires_when_the_claim_was_asked_for_plus_its_seconds() -> None:
    """Breaks when the deadline is counted from the answer, later than the broker's expiry."""
    lease = lease_of()
    assert lease.deadline == START + EXTENSION
    assert due(lease, START + 50) is None


@pytest.mark.parametrize("enough_for", [0.0, 5.0])
@pytest.mark.parametrize("starts", [False, True])
def test_a_provisional_lease_is_due_at_once_or_when_its_expiry_is_enough_no_longer(
    enough_for: float, starts: bool
) -> None:
    """Breaks when a message that waits a moment costs a call, or a task gets less than its lease.

    Seen to fail without the line in ``Lease.start``: nothing was due of a task that had started.
    """
    claim = replace(lease_of().claim, seconds=20.0, provisional=True, enough_for=enough_for)
    policy = LeasePolicy(extension=EXTENSION, interval=INTERVAL)
    lease = Lease(claim, policy, task_id="id", name="task")
    if starts:
        lease.start(START)
    assert lease.deadline == START + 20
    assert lease.is_due(START) is (starts or not enough_for)
    assert lease.is_due(START + enough_for)
    extended(lease, START + enough_for, Answer.UNKNOWN)
    extended(lease, START + enough_for + 0.5)
    interval = INTERVAL if starts else policy.reserved_interval
    lease.see(START + enough_for + interval)
    assert not lease.is_due(START + enough_for + interval)
    assert lease.is_due(START + enough_for + 0.5 + interval)


def test_an_expiry_is_exactly_the_last_beat_plus_the_extension() -> None:
    """Breaks when an extension is counted from when it is sent rather than from the beat (I2).

    With ``expiry = now + extension`` in ``begin_extension``, 170 was asked for instead of 130.
    """
    lease = running()
    lease.see(START + 30)
    extension = extended(lease, START + 70)
    assert extension.expiry == START + 30 + EXTENSION
    assert extension.renewal.seconds == START + 30 + EXTENSION - (START + 70)
    assert lease.deadline == START + 130


def test_a_lease_without_a_new_beat_is_never_due_again() -> None:
    """Breaks when a living process alone keeps a lease (I2).

    Without the comparison with ``extended_to``, an extension was due every 20 seconds.
    """
    lease = running()
    extended(lease, START + 21)
    assert [due(lease, START + second) for second in range(22, 102)] == [None] * 80


def test_a_beat_within_the_interval_counts_at_the_next_opportunity() -> None:
    """Breaks when a beat that came too soon for an extension is forgotten (I2)."""
    lease = running()
    lease.see(START + 25)
    extended(lease, START + 25)
    lease.see(START + 30)
    assert due(lease, START + 44.9) is None
    extension = due(lease, START + 45)
    assert extension is not None
    assert extension.expiry == START + 30 + EXTENSION


def test_an_earlier_beat_that_is_seen_later_changes_nothing() -> None:
    """Breaks when a lease shrinks because two threads' beats were read out of order."""
    lease = running()
    lease.see(START + 30)
    lease.see(START + 20)
    assert lease.expiry() == START + 130


def test_a_beat_at_or_after_the_deadline_does_not_count() -> None:
    """Breaks when a task that hung past its expiry revives a lease that may be another's (I3).

    Without the comparison with the deadline in ``Lease.see``, the lease was due once more.
    """
    lease = running()
    lease.see(lease.deadline)
    assert lease.beat == START + 1
    assert lease.expire(START + EXTENSION)
    assert (lease.state, lease.lost) == (State.LOST, LossReason.EXPIRED)


def test_a_lease_is_held_until_the_last_moment_before_its_deadline() -> None:
    """Breaks when work is thrown away early, or trusted at the very moment of expiry."""
    lease = running()
    assert not lease.expire(math.nextafter(lease.deadline, 0))
    assert lease.expire(lease.deadline)
    assert not lease.expire(lease.deadline)


def test_an_unanswered_extension_is_neither_a_renewal_nor_a_loss() -> None:
    """Breaks when a broker that does not answer extends, or ends, a lease."""
    lease = running()
    lease.see(START + 40)
    extended(lease, START + 40, Answer.UNKNOWN)
    assert lease.state is State.RUNNING
    assert lease.deadline == START + EXTENSION
    again = due(lease, START + 41)
    assert again is not None
    assert again.expiry == START + 140


def test_the_broker_s_no_ends_a_lease_at_once_and_for_good() -> None:
    """Breaks when a worker trusts its own deadline against the broker's word (I4)."""
    lease = running()
    lease.see(START + 40)
    extension = extended(lease, START + 40, Answer.LOST)
    assert (lease.state, lease.lost) == (State.LOST, LossReason.SUPERSEDED)
    lease.answered(extension, Answer.HELD)
    assert lease.state is State.LOST
    assert lease.deadline == START + EXTENSION


def test_an_answer_that_comes_after_the_end_changes_nothing() -> None:
    """Breaks when a message that was handed back is held again by a late answer."""
    lease = running()
    lease.see(START + 40)
    extension = due(lease, START + 40)
    lease.end(State.RELEASED)
    assert extension is not None
    lease.answered(extension, Answer.LOST)
    assert (lease.state, lease.lost) == (State.RELEASED, None)


def test_quiet_covers_its_time_and_no_more() -> None:
    """Breaks when a declared silence is not covered, or is added on top of the extension."""
    lease = running()
    lease.see(START + 30, quiet_until=START + 400)
    assert extended(lease, START + 30).expiry == START + 400
    assert due(lease, START + 399) is None
    assert lease.expire(START + 400)


def test_a_short_quiet_period_takes_nothing_away() -> None:
    """Breaks when quiet(5) shortens a lease to five seconds."""
    lease = running()
    lease.see(START + 30, quiet_until=START + 35)
    assert lease.expiry() == START + 130


def test_the_beat_after_a_quiet_period_brings_the_expiry_forward() -> None:
    """Breaks when a task that stops after quiet(600) blocks its message for the rest of it."""
    lease = running()
    lease.see(START + 30, quiet_until=START + 600)
    extended(lease, START + 30)
    lease.see(START + 60)
    extended(lease, START + 60)
    assert lease.deadline == START + 160


def test_an_expiry_brought_forward_is_obeyed_although_no_answer_comes() -> None:
    """Breaks when the broker has shortened a lease, unheard, and the worker trusts it longer (I1).

    Without the ``min`` in ``Lease.due``, the deadline stayed at 600 while the message was free
    at 160.
    """
    lease = running()
    lease.see(START + 30, quiet_until=START + 600)
    extended(lease, START + 30)
    lease.see(START + 60)
    extended(lease, START + 60, Answer.UNKNOWN)
    assert lease.deadline == START + 160


def test_an_unheard_shortening_is_corrected_by_the_next_beats() -> None:
    """Breaks when a lease at its longest is not sent again after an answer went missing."""
    lease = running(max_duration=400.0)
    lease.see(START + 50, quiet_until=START + 900)
    assert extended(lease, START + 50).expiry == START + 401
    lease.see(START + 250)
    extended(lease, START + 250, Answer.UNKNOWN)
    lease.see(START + 340)
    assert extended(lease, START + 341).expiry == START + 401
    assert lease.deadline == START + 401


def test_no_lease_is_held_longer_than_max_duration() -> None:
    """Breaks when beats, or a quiet period, carry a lease past ``lease_max_duration``."""
    lease = running(max_duration=150.0)
    lease.see(START + 90, quiet_until=START + 5000)
    assert extended(lease, START + 90).expiry == START + 151
    lease.see(START + 140)
    assert due(lease, START + 140) is None
    assert lease.expire(START + 151)
    assert lease.lost is LossReason.MAX_DURATION


@pytest.mark.parametrize("started", [0.1, 1 / 3, 1e-9, 12345.6789])
def test_the_reason_max_duration_survives_rounding(started: float) -> None:
    """Breaks when now - start is a rounding error short of the duration: then it says expired."""
    lease = lease_of(max_duration=33.3)
    lease.start(START + started % 50)
    lease.see(START + started % 50)
    assert extended(lease, START + 60 if started > 50 else START + 30).expiry == lease.last_expiry()
    assert lease.expire(lease.deadline)
    assert lease.lost is LossReason.MAX_DURATION


def test_a_lease_that_expired_says_so_however_late_it_is_looked_at() -> None:
    """Breaks when a silent task's loss is put down to ``lease_max_duration``, over by then."""
    lease = running(max_duration=150.0)
    assert lease.deadline < lease.last_expiry()
    assert lease.expire(START + 1000)
    assert lease.lost is LossReason.EXPIRED


def test_waiting_does_not_count_towards_max_duration() -> None:
    """Breaks when a message with a far ETA is lost before its task starts."""
    lease = lease_of(max_duration=150.0)
    lease.see(START + 90)
    extended(lease, START + 90)
    lease.see(START + 180)
    assert extended(lease, START + 180).expiry == START + 280
    assert not lease.expire(START + 200)


def test_the_start_counts_as_a_beat_and_only_once() -> None:
    """Breaks when a message that waited long starts with a lease that is nearly over."""
    lease = lease_of()
    lease.start(START + 60)
    lease.start(START + 80)
    assert lease.started_at == START + 60
    assert lease.expiry() == START + 160


def test_an_expiry_in_the_past_is_not_asked_for() -> None:
    """Breaks when a broker is asked to make a message visible by a negative duration."""
    lease = running()
    lease.see(START + 30, quiet_until=START + 600)
    extended(lease, START + 30)
    lease.see(START + 31, quiet_until=0.0)
    assert due(lease, START + 140) is None


def test_to_ask_whether_an_extension_is_due_changes_nothing() -> None:
    """Breaks when a look at a lease that is not extended after it moves its deadline."""
    lease = running()
    lease.see(START + 30, quiet_until=START + 600)
    extended(lease, START + 30)
    lease.see(START + 31, quiet_until=0.0)
    assert lease.is_due(START + 60)
    assert (lease.deadline, lease.extended_to) == (START + 600, START + 600)
    lease.begin_extension(START + 60)
    assert (lease.deadline, lease.extended_to) == (START + 131, None)


class LeaseAgainstBroker(RuleBasedStateMachine):
    """Any order of beats, quiet periods, time and answers, beside what the broker would hold.

    ``expires`` is the broker's own expiry. A call reaches the broker some time after it was
    asked for; its answer may get lost after it was obeyed, or the call before.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = START
        self.lease = lease_of(max_duration=700.0)
        self.expires = START + EXTENSION + 1.0
        self.proof = START  # until when the task has proved, or declared, that it works
        self.was_lost = False

    @rule(seconds=st.floats(0.0, 60.0))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def task_starts(self) -> None:
        self.lease.start(self.now)
        self.proof = max(self.proof, self.now + EXTENSION)

    @rule()
    def task_beats(self) -> None:
        self._prove(self.now + EXTENSION)
        self.lease.see(self.now)

    @rule(seconds=st.floats(0.1, 500.0))
    def task_is_quiet(self, seconds: float) -> None:
        self._prove(self.now + max(EXTENSION, seconds))
        self.lease.see(self.now, self.now + seconds)

    def _prove(self, until: float) -> None:
        if self.now < self.lease.deadline:
            self.proof = max(self.proof, until)

    @rule(delay=st.floats(0.0, 3.0), obeyed=st.booleans(), heard=st.booleans(), beat=st.booleans())
    def keeper_passes(self, delay: float, obeyed: bool, heard: bool, beat: bool) -> None:
        if self.lease.expire(self.now) or (extension := due(self.lease, self.now)) is None:
            return
        assert extension.renewal.seconds > 0
        self.now += delay
        if beat:
            self.task_beats()
        free = self.now >= self.expires
        if obeyed and not free:
            self.expires = self.now + extension.renewal.seconds
        answer = Answer.LOST if free else Answer.HELD
        self.lease.answered(extension, answer if obeyed and heard else Answer.UNKNOWN)

    @precondition(lambda self: self.was_lost)
    @rule()
    def task_ends(self) -> None:
        self.lease.end(State.COMPLETED)

    @invariant()
    def the_deadline_is_never_later_than_the_broker_s_expiry(self) -> None:
        if self.lease.is_held:
            assert self.lease.deadline <= self.expires + 1e-6

    @invariant()
    def a_lease_never_outlives_what_the_task_has_proved(self) -> None:
        assert self.lease.deadline <= max(self.proof, START + EXTENSION) + 1e-6
        started = self.lease.started_at
        if started is not None:
            assert self.lease.deadline <= started + 700.0 + 1e-6

    @invariant()
    def what_is_known_of_the_task_is_never_due_twice(self) -> None:
        lease = self.lease
        if lease.is_held and lease.extended_to == lease.expiry():
            assert due(lease, self.now + INTERVAL) is None

    @invariant()
    def lost_is_final(self) -> None:
        self.was_lost = self.was_lost or self.lease.state is State.LOST
        assert self.was_lost == (self.lease.state is State.LOST)


LeaseAgainstBroker.TestCase.settings = settings(
    max_examples=300, stateful_step_count=30, deadline=None
)
TestLeaseAgainstBroker = LeaseAgainstBroker.TestCase
