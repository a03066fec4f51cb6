"""What ``lease advise`` goes by, and what it makes of that."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery

from celery_lease import LeasedTask, board as beatboard, settings
from celery_lease.board.spans import Span
from celery_lease.cli.advise import advice_for, document, in_python, in_words, merged
from celery_lease.core.pace import Pace
from celery_lease.core.policy import Mode
from celery_lease.core.stats import MOST_PAIRS, OTHERS
from celery_lease.settings.conf import Spelling
from celery_lease.task.task import lease_options
from celery_lease.worker.entries import Ending
from celery_lease.worker.telemetry import about
from unit.fake_broker import POLICY

if TYPE_CHECKING:
    from unit.fake_broker import Bench

OBSERVED = replace(POLICY, mode=Mode.OBSERVE)


def paced(*gaps: float, **facts: Any) -> Pace:
    """Return a task's pace with these gaps."""
    pace = Pace(**{"runs": 100, "longest_run": 60.0, "mode": "observe", "extension": 300, **facts})
    for gap in gaps:
        pace.add_gap(gap)
    return pace


def pace_of(bench: Bench, name: str = "t") -> Pace:
    """Return what a worker tells of a task."""
    return Pace.from_dict(json.loads(json.dumps(bench.leases.paces.to_dict()))[name])


def test_quantiles_are_right_by_a_class_and_the_longest_is_exact() -> None:
    """However many gaps there are, there are few classes."""
    pace = paced(*[0.01] * 500, *[2.0] * 480, *[7.0] * 19, 41.3)
    assert pace.quantile(0.5) == pytest.approx(0.1)
    assert 2.0 <= pace.quantile(0.9) <= 2.0 * 1.19
    assert 7.0 <= pace.quantile(0.99) <= 7.0 * 1.19
    assert pace.longest_gap == pace.quantile(1.0) == 41.3
    many = paced(*(each / 7 for each in range(1, 300_000, 11)))
    assert len(many.gaps) < 80
    assert Pace().quantile(0.5) == 0.0


def test_what_workers_tell_is_added_up() -> None:
    """Also what an older worker does not tell, and a newer one tells besides."""
    one, other = paced(1.0, 3.0, late=1), paced(3.0, 9.0, lost=2, longest_run=99.0)
    reply = {"paces": {"t": {**other.to_dict(), "later": 1}}}
    found = merged({"b": reply, "a": {"paces": {"t": one.to_dict()}}, "old": {}})["t"]
    assert (found.gaps.total(), found.longest_gap) == (4, 9.0)
    assert (found.runs, found.longest_run, found.late, found.lost) == (200, 99.0, 1, 2)


def test_gaps_are_between_the_beats_that_the_keeper_sees_and_to_the_end(bench: Bench) -> None:
    """The first one from the body's start; the outcome's storing is none."""
    held = bench.run(policy=OBSERVED)
    bench.passed()
    for looks in (1, 4):
        for _ in range(looks - 1):
            bench.passed(3.0)
        bench.clock.advance(3.0)
        bench.beat(held)
        bench.passed()
    bench.clock.advance(1.0)
    bench.enter(held, Span.STORING)
    bench.passed()
    bench.passed(6.0)
    bench.leases.complete("a")
    pace = pace_of(bench)
    assert sorted(pace.gaps.values()) == [1, 1, 1]
    assert (pace.longest_gap, pace.quantile(0.3)) == (12.0, pytest.approx(1.0, rel=0.2))
    assert (pace.runs, pace.longest_run, pace.silent, pace.late) == (1, 22.0, 0, 1)
    assert (pace.mode, pace.extension) == ("observe", 10.0)


def test_a_silence_before_a_last_beat_is_a_gap(bench: Bench) -> None:
    """The keeper does not see that beat: the run ends before its next look."""
    held = bench.run(policy=OBSERVED)
    bench.passed()
    bench.clock.advance(12.0)
    bench.beat(held)
    bench.leases.complete("a")
    pace = pace_of(bench)
    assert (pace.longest_gap, pace.gaps.total(), pace.late) == (12.0, 1, 1)


def test_a_quiet_period_is_no_gap(bench: Bench) -> None:
    """It was declared, and the lease covers it."""
    held = bench.run()
    bench.write(held, beatboard.QUIET, bench.clock.now() + 8.0)
    bench.passed()
    bench.passed(8.5)
    bench.beat(held)
    bench.write(held, beatboard.QUIET, 0.0)
    bench.passed()
    bench.leases.complete("a")
    assert pace_of(bench).longest_gap == pytest.approx(0.5)


def test_a_run_without_a_beat_is_silent_and_a_short_one_tells_nothing_of_that(
    bench: Bench,
) -> None:
    """The body's start is a beat that nobody wrote."""
    bench.run("a")
    bench.clock.advance(1.0)
    bench.leases.complete("a")
    assert pace_of(bench).silent == 0
    held = bench.run("b")
    bench.passed()
    bench.passed(2.5)
    bench.leases.complete("b")
    assert held.ending is Ending.COMPLETED
    pace = pace_of(bench)
    assert (pace.runs, pace.silent, pace.longest_gap) == (2, 1, 2.5)


def test_a_beat_that_the_keeper_does_not_see_is_a_beat(bench: Bench) -> None:
    """Before its first look at the body, or after the last one: the run says so at its end."""
    for tag, looks_first, before, after in (("a", False, 0.25, 2.5), ("b", True, 2.5, 0.25)):
        held = bench.run(tag)
        if looks_first:
            bench.passed()
        bench.clock.advance(before)
        bench.beat(held)
        if not looks_first:
            bench.passed()
        bench.clock.advance(after)
        bench.enter(held, Span.STORING, beaten=True)
        bench.passed()
        bench.leases.complete(tag)
    pace = pace_of(bench)
    assert (pace.runs, pace.silent, pace.longest_gap) == (2, 0, 2.5)


def test_a_loss_is_no_run_and_what_did_not_start_is_nothing(bench: Bench) -> None:
    """The silence of a task that hangs is no gap of healthy work."""
    bench.receive("a")
    bench.leases.requeue_unstarted()
    assert bench.leases.paces.to_dict() == {}
    bench.run("b")
    bench.passed()
    bench.passed(11.0)
    bench.leases.complete("b")
    pace = pace_of(bench)
    assert (pace.runs, pace.lost, pace.longest_gap) == (0, 1, 0.0)


def test_the_names_of_tasks_are_bounded(bench: Bench) -> None:
    """Those that come later are one."""
    for number in range(MOST_PAIRS + 5):
        bench.run(str(number), task=f"t{number}")
        bench.leases.complete(str(number))
    paces = bench.leases.paces.to_dict()
    assert len(paces) == MOST_PAIRS + 1
    assert paces[OTHERS[0]]["runs"] == 5


def test_a_worker_tells_it_when_it_is_asked(bench: Bench) -> None:
    """One without leases tells nothing."""
    bench.run()
    bench.leases.complete("a")
    consumer: Any = SimpleNamespace(lease_runtime=SimpleNamespace(leases=bench.leases))
    assert about.paces(consumer)["t"]["runs"] == 1
    assert about.paces(SimpleNamespace()) == {}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("pace", "outage", "mode", "extension", "said"),
    [
        (paced(0.5, 1.0), 60, "heartbeat", 90, ""),
        (paced(25.0), 60, "heartbeat", 120, ""),  # the first worked example of calibration.md
        (paced(1.0), 10, "heartbeat", 15, ""),
        (paced(600.0), 600, "heartbeat", 1800, ""),
        (paced(200.0), 0, "heartbeat", 450, ""),
        (paced(5000.0), 60, "daemon", 90, "too long"),
        (paced(40.0, silent=100), 60, "daemon", 90, "no beat was seen"),
        (paced(40.0, silent=1, runs=1), 60, "daemon", 90, "by its process; only 1 run so far"),
        (paced(40.0, silent=99), 60, "heartbeat", 180, ""),
        (paced(1.0, runs=1), 60, "heartbeat", 90, "only 1 run so far"),
    ],
)
def test_proposals_obey_the_rules(
    pace: Pace, outage: float, mode: str, extension: int, said: str
) -> None:
    """Those of docs/calibration.md, and those that a worker checks at its start."""
    found = advice_for(pace, outage)
    assert found
    assert (found.lease_mode, found.lease_extension) == (mode, extension)
    assert said in found.why
    gap = pace.longest_gap if mode == "heartbeat" else 0.0
    assert gap <= extension / 2
    assert outage < extension - found.lease_interval - gap
    assert settings.load(found.settings).warnings == ()


@pytest.mark.parametrize(
    ("longest", "hours"),
    [
        (0.2, 1),
        (1800.0, 1),
        (1801.0, 2),
        (3720.0, 3),
        (20_000.0, 12),
        (259_200.0, 168),
        (2e6, None),
    ],
)
@pytest.mark.parametrize("silent", [0, 20])
def test_the_longest_duration_is_far_above_the_longest_run(
    longest: float, hours: int | None, silent: int
) -> None:
    """Twice that at least, in whole hours and in either mode; nothing that worked is refused."""
    found = advice_for(paced(1.0, runs=20, silent=silent, longest_run=longest), 60)
    assert found
    assert found.lease_max_duration == (hours and hours * 3600)
    assert ("lease_max_duration" in found.settings) is (hours is not None)
    policy = settings.load(found.settings).policy
    assert hours is None or policy.max_duration >= 2 * longest


def test_few_runs_or_a_long_lease_are_no_basis_for_a_short_duration() -> None:
    """Nothing is proposed before there are enough runs; a lease always fits into its limit."""
    few = advice_for(paced(1.0, runs=19), 60)
    assert few
    assert few.lease_max_duration is None
    assert "lease_max_duration" not in "".join(in_words({"t": paced(1.0, runs=19)}, 60))
    long = advice_for(paced(3000.0, longest_run=3100.0), 60)
    assert long
    assert (long.lease_extension, long.lease_max_duration) == (7200, 7200)


def test_what_never_ran_to_its_end_gets_no_advice() -> None:
    """Nor a line in the configuration."""
    paces = {"t.new": paced(1.0, runs=0)}
    assert advice_for(paces["t.new"], 60) is None
    text = "\n".join(in_words(paces, 60))
    assert "t.new: nothing to go by yet\n  seen: 0 runs; 1 gap between beats" in text
    assert len(list(in_python(paces, 60, Spelling("", frozenset())))) == 2
    assert document(paces, 60)["tasks"][0]["proposed"] is None
    (ran,) = document({"t": paced(1.0)}, 60)["tasks"]
    assert (ran["longest_run"], ran["proposed"]["lease_max_duration"]) == (60.0, 3600)


@pytest.mark.parametrize("namespace", ["", "CELERY"])
def test_lines_for_the_configuration_are_what_the_task_gets(namespace: str) -> None:
    """Also over its decorator's options, and under Django's namespace."""
    written = in_python(
        {"t.work": paced(25.0)}, 60, Spelling(f"{namespace}_" if namespace else "", frozenset())
    )
    values: dict[str, Any] = {}
    exec("\n".join(written), values)  # noqa: S102  (our own lines)
    (name,) = values.keys() - {"__builtins__"}
    assert name == ("CELERY_TASK_ANNOTATIONS" if namespace else "task_annotations")
    app = Celery("t", set_as_current=False)
    app.conf.update(task_annotations=values[name], lease_interval=60)

    @app.task(base=LeasedTask, name="t.work", shared=False, lease_mode="observe")
    def work() -> None: ...

    resolved = settings.task_lease(settings.load(app.conf), lease_options(app.tasks["t.work"]))
    policy = resolved.policy
    assert (policy.mode, policy.extension, policy.interval) == (Mode.HEARTBEAT, 120, 24)
    assert policy.max_duration == 3600


def test_evidence_is_told_in_words() -> None:
    """Count, quantiles and the longest of the gaps; runs; what was or would have been lost."""
    text = "\n".join(in_words({"t": paced(1.0, 25.0, late=1, lost=2)}, 60))
    proposed = "t: lease_mode heartbeat, lease_extension 120 s, lease_interval 24 s"
    assert f"{proposed}, lease_max_duration 3600 s" in text
    assert "100 runs, the longest 60s; 2 gaps between beats, half of them up to 1.1s" in text
    assert "99 % up to 25s, the longest 25s" in text
    assert "1 run with a gap longer than the lease; 2 runs lost" in text
    assert "now: lease_mode observe, lease_extension 300 s" in text
    assert "no leased task has run" in "\n".join(in_words({}, 60))
