"""One pass of the keeper: what it extends, what it loses, and what it says.

Time is the test's own; the broker is one in memory that can be silent.
"""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from celery_lease import board as beatboard
from celery_lease.board import Outcome
from celery_lease.board.spans import Span
from celery_lease.core.lease import State
from celery_lease.core.loss import FLAG_LOST, FLAG_MAX_DURATION, FLAG_SUPERSEDED, LossReason
from celery_lease.core.policy import Mode, OnLost
from celery_lease.worker import keeper as keeper_module
from celery_lease.worker.keeper import ANSWER_TIMEOUT, LONGEST_WAIT, REST_WAIT, RESTS_AFTER
from unit.fake_broker import POLICY, Bench

DAEMON = replace(POLICY, mode=Mode.DAEMON)
OBSERVE = replace(POLICY, mode=Mode.OBSERVE)


@pytest.fixture(autouse=True)
def processes(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Return the ids of the processes that live; process 1 does."""
    alive = {1}
    monkeypatch.setattr(keeper_module, "is_alive", lambda pid: pid in alive)
    return alive


def test_an_expiry_is_the_last_beat_plus_the_extension(bench: Bench) -> None:
    """I2: a beat 1.5 s before the pass moves the broker's expiry to 10 s after the beat, exactly.

    Removed: the time since the beat from the renewal (``expiry - now`` made ``policy.extension``);
    failed with: ``1015.0 == 1013.5``.
    """
    held = bench.run()
    bench.clock.advance(3.5)
    bench.beat(held)
    report = bench.passed(1.5)
    assert report.extended == 1
    assert bench.driver.expiries["a"] == held.lease.beat + 10.0 == 1013.5
    assert held.lease.deadline == bench.gate(held) == 1013.5


def test_without_a_new_beat_nothing_is_extended(bench: Bench) -> None:
    """I2: passes without a beat send nothing, and the lease expires 10 s after the start.

    Removed: the comparison with the last expiry in ``Lease.due``; failed with: ``4 == 0`` calls.
    """
    held = bench.run()
    reports = [bench.passed(2.25) for _ in range(4)]
    assert bench.driver.count("extend") == 0
    assert not any(report.lost for report in reports)
    assert bench.passed(1.0).lost == 1
    assert held.lease.lost is LossReason.EXPIRED


def test_a_beat_inside_the_interval_counts_at_the_next_opportunity(bench: Bench) -> None:
    """I2: a beat just after an extension is sent once the interval is over, with its own time."""
    held = bench.run()
    bench.clock.advance(2.0)
    bench.beat(held)
    bench.passed()
    bench.clock.advance(0.5)
    bench.beat(held)
    assert bench.passed(0.5).extended == 0
    assert bench.passed(1.0).extended == 1
    assert bench.driver.expiries["a"] == 1012.5


def test_traffic_does_not_grow_with_beats(bench: Bench) -> None:
    """I8: a thousand beats in 10 s are one extension for each interval of 2 s.

    Removed: the rate limit in ``Lease.due``; failed with: ``39 == 5`` calls.
    """
    held = bench.run()
    for _ in range(40):
        for _ in range(25):
            bench.beat(held)
        bench.passed(0.25)
    assert bench.driver.count("extend") == 5


def test_all_leases_of_a_pass_share_one_call(bench: Bench) -> None:
    """I8: thirty leases whose tasks beat are extended by one call.

    Removed: the batch (one call for each lease in ``run_once``); failed with: ``30 == 1``.
    """
    many = [bench.run(str(number)) for number in range(30)]
    bench.clock.advance(2.5)
    for held in many:
        bench.beat(held)
    assert bench.passed().extended == 30
    assert bench.driver.count("extend") == 1


def test_what_is_about_to_expire_is_asked_for_first_and_waited_for_less(bench: Bench) -> None:
    """A lease with 4 s left goes in a call of its own, which waits no longer than these 4 s."""
    long = replace(POLICY, extension=100.0)
    relaxed = bench.run("relaxed", policy=long)
    urgent = bench.run("urgent")
    bench.clock.advance(6.0)
    bench.beat(relaxed)
    bench.beat(urgent)
    bench.passed()
    first, second = bench.driver.calls
    assert [[each.tag for each in call.what] for call in (first, second)] == [
        ["urgent"],
        ["relaxed"],
    ]
    assert (first.timeout, second.timeout) == (4.0, ANSWER_TIMEOUT)


def test_a_renewal_is_counted_from_when_it_is_sent(bench: Bench) -> None:
    """I2: the urgent call waits 3 s; what is asked after it ends at its own beat plus extension.

    Removed: working out what is due again before each call; failed with: ``1109.0 == 1106.0``.
    """
    relaxed = bench.run("relaxed", policy=replace(POLICY, extension=100.0))
    urgent = bench.run("urgent")
    bench.clock.advance(6.0)
    bench.beat(relaxed)
    bench.beat(urgent)
    bench.driver.meanwhile = lambda: bench.clock.advance(3.0)
    bench.passed()
    assert bench.driver.expiries["relaxed"] == 1106.0


def test_silence_is_neither_a_renewal_nor_the_end_of_renewing(bench: Bench) -> None:
    """An unanswered extension leaves the deadline, and the same is asked at the next pass."""
    held = bench.run()
    bench.clock.advance(3.0)
    bench.beat(held)
    bench.driver.silent = True
    assert bench.passed().unknown == 1
    assert held.lease.deadline == bench.gate(held) == 1010.0
    bench.driver.silent = False
    assert bench.passed(1.0).extended == 1
    assert held.lease.deadline == bench.driver.expiries["a"] == 1013.0


def test_silence_until_the_deadline_loses_the_lease(bench: Bench) -> None:
    """I3: a beating task whose extensions are not answered is told at its deadline, once.

    Removed: the expiry in ``Keeper._look``; failed with: ``[0, 0, 0, 0, 0] == [0, 0, 0, 1, 0]``.
    """
    held = bench.run()
    bench.driver.silent = True
    lost = []
    for _ in range(5):
        bench.clock.advance(2.5)
        bench.beat(held)
        lost.append(bench.passed().lost)
    assert lost == [0, 0, 0, 1, 0]
    assert bench.flags_of(held) == FLAG_LOST
    assert bench.gate(held) == 0.0


def test_a_call_never_waits_beyond_the_deadline_of_a_lease_in_it(bench: Bench) -> None:
    """With half a second left the call gets half a second; with nothing left none is made."""
    held = bench.run()
    bench.clock.advance(9.5)
    bench.beat(held)
    bench.driver.silent = True
    bench.passed()
    assert bench.driver.calls[-1].timeout == pytest.approx(0.5)
    bench.passed(0.6)
    assert bench.driver.count("extend") == 1


def test_what_expires_while_another_call_waits_is_not_sent(bench: Bench) -> None:
    """I2: the process stood still in the urgent call, and the other leases ended meanwhile."""
    urgent = bench.run("urgent")
    other = bench.run("other", policy=replace(POLICY, extension=15.0))
    bench.clock.advance(9.0)
    bench.beat(urgent)
    bench.beat(other)
    bench.driver.meanwhile = lambda: bench.clock.advance(8.0)
    bench.passed()
    assert [each.tag for each in bench.driver.sent("extend")] == ["urgent"]
    assert bench.passed().lost == 1
    assert not other.lease.is_held


def test_an_answer_after_the_deadline_does_not_bring_a_lease_back(bench: Bench) -> None:
    """I3: the worker stood still in the middle of the call; the task may have been told by now.

    Removed: the expiry in ``Keeper._apply``; failed with: ``(1, 0) == (1, 1)``.
    """
    held = bench.run()
    bench.clock.advance(9.0)
    bench.beat(held)
    bench.driver.meanwhile = lambda: bench.clock.advance(5.0)
    report = bench.passed()
    assert (report.extended, report.lost) == (1, 1)
    assert held.lease.state is State.LOST
    assert bench.gate(held) == 0.0


def test_what_the_broker_calls_lost_is_lost_at_once(bench: Bench) -> None:
    """I1: another delivery owns the message; the task is told that at its next beat.

    Removed: the answer (taken as HELD in ``Keeper._apply``); failed with: ``0 == 1`` lost.
    """
    held = bench.run()
    del bench.driver.expiries["a"]
    bench.clock.advance(2.5)
    bench.beat(held)
    assert bench.passed().lost == 1
    assert held.lease.lost is LossReason.SUPERSEDED
    assert bench.flags_of(held) == FLAG_LOST | FLAG_SUPERSEDED


def test_a_lost_lease_is_never_extended_again(bench: Bench) -> None:
    """I3: beats after the loss cause no call, though the deadline is still ahead.

    Removed: the state in ``Keeper._look_at_all`` and ``Lease.due``; failed with: ``2 == 1`` calls.
    """
    held = bench.run()
    del bench.driver.expiries["a"]
    for _ in range(2):
        bench.clock.advance(2.5)
        bench.beat(held)
        bench.passed()
    assert bench.driver.count("extend") == 1


def test_a_beat_of_the_record_s_former_lease_extends_nothing(bench: Bench) -> None:
    """I1: a thread that outlived its task beats into a record that another lease has now.

    Removed: the generation in ``Board.read_time``; failed with: ``1 == 0`` calls.
    """
    former = bench.run("former")
    outdated = former.slot
    bench.leases.complete("former")
    assert outdated
    held = bench.receive("heir")
    held.slot = replace(outdated, generation=outdated.generation + 1)
    held.lease.start(bench.clock.now())
    bench.enter(held, Span.BODY)
    bench.clock.advance(3.0)
    bench.board.write_time(outdated, beatboard.BEAT, bench.clock.now())
    bench.passed()
    assert bench.driver.count("extend") == 0


def test_a_quiet_period_is_covered_and_no_more(bench: Bench) -> None:
    """A task that declares 60 s has its lease until then, and loses it there."""
    held = bench.run()
    bench.clock.advance(1.0)
    bench.write(held, beatboard.QUIET, bench.clock.now() + 60.0)
    bench.passed(1.0)
    assert bench.driver.expiries["a"] == held.lease.deadline == 1061.0
    assert bench.passed(58.9).lost == 0
    assert bench.passed(0.2).lost == 1


def test_a_lease_ends_at_its_longest_duration_whatever_the_task_does(bench: Bench) -> None:
    """With 15 s at most, beats extend to the 15th second and the task is told why."""
    held = bench.run(policy=replace(POLICY, max_duration=15.0))
    for _ in range(6):
        bench.clock.advance(2.5)
        bench.beat(held)
        bench.passed()
    assert held.lease.lost is LossReason.MAX_DURATION
    assert bench.flags_of(held) == FLAG_LOST | FLAG_MAX_DURATION


def test_reserved_messages_live_as_long_as_the_main_loop_turns(bench: Bench) -> None:
    """A message that waits for three extensions is held; it expires once the loop stands still."""
    bench.receive()
    for _ in range(15):
        bench.clock.advance(2.0)
        bench.loop_turns()
        assert bench.passed().lost == 0
    assert bench.driver.expiries["a"] == 1040.0
    assert bench.passed(10.0).lost == 1


def test_reserved_messages_expire_where_holding_them_is_off(bench: Bench) -> None:
    """Without ``lease_hold_reserved`` waiting is no progress."""
    bench.receive(policy=replace(POLICY, hold_reserved=False))
    bench.loop_turns()
    bench.clock.advance(9.0)
    bench.loop_turns()
    assert bench.passed(1.0).lost == 1


def test_what_waits_in_the_pool_is_held_like_what_waits_before_it(bench: Bench) -> None:
    """A task that no process has taken yet is held by the loop, not by beats."""
    held = bench.receive()
    bench.leases.start("a")
    bench.clock.advance(5.0)
    bench.loop_turns()
    assert bench.passed().extended == 1
    assert held.lease.state is State.RESERVED


@pytest.mark.parametrize("proof", ["beats", "quiet", "daemon"])
def test_in_a_solo_worker_the_running_task_holds_what_waits(bench: Bench, proof: str) -> None:
    """The loop stands still in the task; what counts for its lease counts for the others too."""
    bench.leases.loop_is_task = True
    bench.receive("waiting")
    running = bench.run(policy=DAEMON if proof == "daemon" else POLICY)
    if proof == "quiet":
        bench.write(running, beatboard.QUIET, bench.clock.now() + 100.0)
    for _ in range(10):
        bench.clock.advance(2.5)
        if proof == "beats":
            bench.beat(running)
        assert bench.passed().lost == 0
    assert bench.driver.expiries["waiting"] == 1032.5  # the last extension was at 1022.5


def test_in_a_solo_worker_a_stuck_task_lets_go_of_what_waits(bench: Bench) -> None:
    """Without beats both leases expire, so both messages are run elsewhere."""
    bench.leases.loop_is_task = True
    bench.receive("waiting")
    bench.run()
    assert bench.passed(10.0).lost == 2


def test_a_daemon_lease_lives_as_long_as_its_process(bench: Bench, processes: set[int]) -> None:
    """Nobody beats; the lease is extended until the process is gone, then it expires."""
    held = bench.run(policy=DAEMON)
    for _ in range(10):
        assert bench.passed(2.5).lost == 0
    assert held.lease.deadline == 1035.0
    processes.clear()
    assert bench.passed(2.5).lost == 0
    assert bench.passed(7.5).lost == 1


def test_a_daemon_lease_lives_before_the_pool_tells_the_process(bench: Bench) -> None:
    """The task started by its own word; the loop that would tell its process stands still."""
    bench.run(policy=DAEMON, pid=None)
    assert [bench.passed(2.5).lost for _ in range(8)] == [0] * 8


def test_an_observed_lease_is_kept_and_what_heartbeats_would_have_done_is_told_once(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """A task that beats at 3 s and never again: at 13 s it would have been lost; it goes on."""
    held = bench.run(policy=OBSERVE)
    bench.clock.advance(3.0)
    bench.beat(held)
    with caplog.at_level(logging.WARNING):
        reports = [bench.passed(2.5) for _ in range(10)]
    assert sum(report.unproven for report in reports) == 1
    assert sum(report.lost for report in reports) == 0
    (record,) = caplog.records
    assert "'heartbeat' would have lost its lease after 13.0 s" in record.getMessage()


def test_an_observed_task_that_beats_or_is_quiet_is_not_reported(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """Heartbeat mode would have kept both."""
    beating, quiet = bench.run("a", policy=OBSERVE), bench.run("b", policy=OBSERVE)
    bench.write(quiet, beatboard.QUIET, bench.clock.now() + 100.0)
    with caplog.at_level(logging.WARNING):
        for _ in range(10):
            bench.clock.advance(4.0)
            bench.beat(beating)
            assert bench.passed().unproven == 0
    assert not caplog.records


def test_a_task_that_has_not_beaten_for_half_a_lease_is_warned_about_once_a_name(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """Two tasks of one name and one of another: two warnings, none before half of the lease."""
    for tag, task in (("a", "t"), ("b", "t"), ("c", "other")):
        bench.run(tag, task=task)
    with caplog.at_level(logging.WARNING):
        bench.passed(4.9)
        assert not caplog.records
        bench.passed(0.2)
        bench.passed(1.0)
    assert ["task t[" in r.getMessage() for r in caplog.records] == [True, False]
    assert all("half of its lease of 10 s" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("case", ["beats", "quiet", "daemon", "reserved"])
def test_what_is_not_silent_is_not_warned_about(
    bench: Bench, caplog: pytest.LogCaptureFixture, case: str
) -> None:
    """Only a running task that should beat and does not is worth a warning."""
    policy = DAEMON if case == "daemon" else POLICY
    held = bench.receive() if case == "reserved" else bench.run(policy=policy)
    bench.clock.advance(4.0)
    if case == "beats":
        bench.beat(held)
    if case == "quiet":
        bench.write(held, beatboard.QUIET, bench.clock.now() + 30.0)
    with caplog.at_level(logging.WARNING):
        bench.passed(2.0)
    assert not caplog.records


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (POLICY, "its next beat raises LeaseLost"),
        (replace(POLICY, on_lost=OnLost.CONTINUE), "it runs on"),
    ],
)
def test_a_loss_is_logged_once_with_what_comes_of_it(
    bench: Bench, caplog: pytest.LogCaptureFixture, policy: object, words: str
) -> None:
    """An operator reads task, reason, delivery and token, and can filter by fields."""
    bench.run(policy=policy)
    with caplog.at_level(logging.WARNING):
        bench.passed(10.0)
        bench.passed(1.0)
    (record,) = caplog.records
    assert "lease of task t[id-a] lost (expired), delivery 1, token 1" in record.getMessage()
    assert words in record.getMessage()
    assert vars(record)["lease"] == "a"


def test_a_lease_that_ended_during_the_call_is_left_alone(bench: Bench) -> None:
    """The task was acknowledged while its extension was under way; its answer changes nothing."""
    held = bench.run()
    bench.clock.advance(3.0)
    bench.beat(held)
    bench.driver.meanwhile = lambda: bench.leases.complete("a")
    assert bench.passed().lost == 0
    assert held.lease.state is State.COMPLETED
    assert bench.gate(held) == 0.0


def test_a_message_goes_back_only_after_the_extension_that_is_under_way(bench: Bench) -> None:
    """I5: an extension that reached the broker after the hand-back would hide the message again.

    Removed: ``LeaseRegistry.renewing``; failed with: ``["requeue", "extend"]``, by arrival.
    """
    order: list[str] = []
    bench.receive()
    bench.clock.advance(6.0)
    bench.loop_turns()

    def requeue() -> None:
        bench.leases.requeue_unstarted()
        order.extend(call.name for call in bench.driver.calls if call.name == "requeue")
        order.append("extend")

    bench.driver.meanwhile = requeue
    bench.passed()
    assert order == ["extend"]
    assert bench.driver.sent("requeue") == ["a"]
    assert not bench.driver.expiries


def test_nothing_is_extended_after_its_message_went_back(bench: Bench) -> None:
    """Renewing stops before a message is handed back."""
    bench.receive()
    bench.leases.requeue_unstarted()
    bench.clock.advance(3.0)
    bench.loop_turns()
    bench.passed()
    assert bench.driver.count("extend") == 0


def test_a_driver_that_raises_all_the_same_leaves_no_lease_marked(bench: Bench) -> None:
    """The pass fails; messages can be handed back afterwards and the next pass works."""
    held = bench.run()
    bench.clock.advance(3.0)
    bench.beat(held)

    def fail() -> None:
        raise RuntimeError("broken driver")

    bench.driver.meanwhile = fail
    with pytest.raises(RuntimeError):
        bench.passed()
    assert not bench.leases.renewing
    assert bench.passed(0.1).extended == 1


def idle(bench: Bench, seconds: float = RESTS_AFTER + 1.0) -> float:
    """Let time pass in which the main loop turns; return the wait until the next pass."""
    bench.passed()
    bench.clock.advance(seconds)
    bench.leases.loop_seen = bench.clock.now()
    return bench.passed().wait


def test_a_keeper_without_leases_rests(bench: Bench) -> None:
    """An idle worker costs about as much as a plain one."""
    assert idle(bench, RESTS_AFTER / 2) == LONGEST_WAIT
    assert not bench.leases.resting
    assert idle(bench) == REST_WAIT
    assert bench.leases.resting


def test_a_keeper_with_a_lease_does_not_rest(bench: Bench) -> None:
    """A waiting message's lease is kept by the loop's turning, which the keeper has to see."""
    bench.receive("t1")
    assert idle(bench) == LONGEST_WAIT
    assert not bench.leases.resting


def test_a_keeper_does_not_rest_while_the_main_loop_stands_still(bench: Bench) -> None:
    """It does the loop's urgent work then."""
    bench.passed()
    bench.clock.advance(RESTS_AFTER + 1.0)
    assert bench.passed().wait == LONGEST_WAIT


def test_a_keeper_does_not_rest_at_a_broker_that_it_tends(bench: Bench) -> None:
    """RabbitMQ closes the channel of a plain task's message that is not returned in time."""
    bench.driver.is_tended = True
    assert idle(bench) == LONGEST_WAIT
    assert not bench.leases.resting


def test_a_keeper_does_not_rest_while_a_message_has_to_go_back(bench: Bench) -> None:
    """Its claim failed, so it holds no lease, and the broker has not answered its return."""
    bench.driver.silent = True
    bench.leases.unclaimed("attempt")
    idle(bench)
    assert not bench.leases.resting


def test_a_message_that_waits_is_looked_at_when_something_may_be_due(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands may wait, and each pass would see all of them. One that starts is seen at once."""
    looked: list[str] = []
    look = keeper_module.Keeper._look
    monkeypatch.setattr(
        keeper_module.Keeper,
        "_look",
        lambda keeper, entry, pass_: (
            looked.append(entry.lease.task_id) or look(keeper, entry, pass_)
        ),
    )
    bench.receive("a", policy=replace(POLICY, extension=6.0, interval=1.2))
    for _ in range(7):
        bench.loop_turns()
        assert bench.passed(0.5).held == 1
    assert looked == ["id-a"]  # when it was extended
    bench.leases.start("a")
    bench.passed(0.5)
    assert len(looked) == 2


@pytest.mark.parametrize(
    ("extension", "interval", "first"),
    [(300.0, 60.0, 150.0), (6.0, 1.2, 3.0), (1.0, 0.2, 0.2), (10.0, 5.5, 5.5)],
)
def test_a_message_that_waits_is_extended_at_half_of_its_lease(
    bench: Bench, extension: float, interval: float, first: float
) -> None:
    """A short one leaves three seconds, or what its interval leaves. The keeper wakes for it."""
    bench.receive("a", policy=replace(POLICY, extension=extension, interval=interval))
    while not bench.driver.sent("extend"):
        bench.loop_turns()
        began, wait = bench.clock.now(), bench.passed().wait
        bench.clock.advance(wait)
    assert first <= began - 1000.0 <= first + extension / 32


def test_a_task_that_starts_late_in_its_lease_is_extended_by_its_own_interval(bench: Bench) -> None:
    """Its process has half of a lease, until the keeper has seen it."""
    bench.receive(policy=replace(POLICY, extension=300.0, interval=60.0))
    bench.clock.advance(100.0)
    bench.begin()
    assert bench.passed(0.5).extended == 1


@pytest.mark.parametrize("turns", [False, True])
def test_messages_wait_on_beside_a_loop_that_stands_still(bench: Bench, turns: bool) -> None:
    """They expire then, as one, and are not extended before it turns again."""
    for tag in "abc":
        bench.receive(tag)
    bench.passed(7.0)
    if turns:
        bench.loop_turns()
    assert bench.passed(1.0).extended == (3 if turns else 0)
    assert bench.passed(2.0).lost == (0 if turns else 3)
    assert bench.passed(2.0).lost == 0


def test_an_extension_without_an_answer_is_repeated_for_a_message_that_waits(bench: Bench) -> None:
    """It stays due until the broker answers."""
    bench.receive(policy=replace(POLICY, extension=300.0, interval=60.0))
    bench.clock.advance(170.0)
    bench.loop_turns()
    bench.driver.silent = True
    report = bench.passed()
    assert report.unknown == 1
    bench.driver.silent = False
    assert bench.passed(report.wait).extended == 1
    assert bench.passed(1.0).extended == 0


def test_the_wait_follows_the_shortest_lease(bench: Bench) -> None:
    """An idle keeper waits its longest, one with a lease a quarter of that one's interval."""
    assert bench.passed().wait == LONGEST_WAIT
    bench.run(policy=replace(POLICY, extension=3.0, interval=0.6))
    assert bench.passed().wait == pytest.approx(0.15)


def test_before_the_body_the_process_s_life_counts_for_one_extension(bench: Bench) -> None:
    """I2: a hook that says nothing has that and the lease itself, and no more."""
    held = bench.run()
    bench.enter(held, Span.STARTING)
    for _ in range(9):
        bench.passed(2.0)
    assert held.lease.deadline == 1000.0 + 2 * 10.0
    assert bench.passed(2.0).lost == 1
    assert held.lease.lost is LossReason.EXPIRED


def test_before_the_body_a_dead_process_counts_for_nothing(
    bench: Bench, processes: set[int]
) -> None:
    """Its lease is as long as it was."""
    held = bench.run()
    bench.enter(held, Span.STARTING)
    processes.clear()
    for _ in range(4):
        bench.passed(2.0)
    assert held.lease.deadline == 1010.0


@pytest.mark.parametrize("span", [Span.STORING, Span.RETRYING])
def test_after_the_body_the_process_s_life_counts_until_the_longest_duration(
    bench: Bench, span: Span
) -> None:
    """I2, I5: finished work is not done again for a backend that is away; then it says why."""
    held = bench.run(policy=replace(POLICY, max_duration=60.0))
    bench.enter(held, span)
    for _ in range(29):
        assert bench.passed(2.0).lost == 0
    assert bench.passed(3.0).lost == 1
    assert held.lease.lost is LossReason.RESULT_NOT_STORED
    assert (bench.flags_of(held) or 0) & FLAG_MAX_DURATION


def test_a_process_that_stopped_while_it_stored_keeps_nothing(
    bench: Bench, processes: set[int]
) -> None:
    """I2: it is its life that counts, and a stopped one has none."""
    held = bench.run()
    bench.enter(held, Span.STORING)
    processes.clear()
    for _ in range(5):
        bench.passed(2.0)
    assert held.lease.lost is LossReason.EXPIRED


def test_what_is_stored_for_long_is_told_of_once(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """By the keeper where the task's process does not: it waits inside of a library."""
    held = bench.run()
    bench.enter(held, Span.STORING)
    quiet = bench.run("b")
    bench.enter(quiet, Span.RETRYING)
    for _ in range(6):
        bench.passed(2.0)
    lines = [
        each for each in caplog.messages if "has ended, but its outcome has not been stored" in each
    ]
    assert len(lines) == 1
    assert "id-a" in lines[0]
    assert "has not beaten" not in caplog.text


@pytest.mark.parametrize(
    ("outcome", "call", "orderly"),
    [
        (Outcome.DONE, "complete", None),
        (Outcome.HANDED_OVER, "requeue", True),
        (Outcome.NOT_STORED, "requeue", False),
    ],
)
def test_what_a_run_has_told_is_settled_at_the_next_pass(
    bench: Bench, outcome: Outcome, call: str, *, orderly: bool | None
) -> None:
    """I2: its hooks may take as long as they like, without a lease."""
    held = bench.run()
    bench.board.write_outcome(held.slot or beatboard.Slot(0, 0), outcome)
    bench.passed(0.5)
    (made,) = [each for each in bench.driver.calls if each.name == call]
    assert made.what == ["a"]
    assert made.options.get("orderly") is orderly
    assert not len(bench.leases)
    assert held.lease.lost is (
        LossReason.RESULT_NOT_STORED if outcome is Outcome.NOT_STORED else None
    )
