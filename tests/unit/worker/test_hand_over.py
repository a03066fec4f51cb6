"""Hand over and stack: what a worker does and says about one task, and how people read it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from celery_lease.cli.hand_over import WORDS, outcomes
from celery_lease.cli.stack import NO_STACK, in_words, seen
from celery_lease.core.loss import FLAG_LOST, FLAG_SHUTDOWN
from celery_lease.worker import compat, control
from celery_lease.worker.diagnosis import Diagnosis, Doing
from celery_lease.worker.hand_over import Reaction, hand_over
from unit.fake_broker import POLICY, Bench

if TYPE_CHECKING:
    from collections.abc import Iterator

INTERRUPTIBLE = replace(POLICY, interruptible=True)


@pytest.fixture
def bench() -> Iterator[Bench]:
    """Return a worker."""
    bench = Bench()
    yield bench
    bench.leases.close()


def worker(bench: Bench, **parts: Any) -> Any:
    """Return what Celery gives a remote control command."""
    runtime = SimpleNamespace(leases=bench.leases, **parts)
    return SimpleNamespace(consumer=SimpleNamespace(lease_runtime=runtime))


def test_only_a_running_interruptible_task_is_told(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others go on as they were, and the answer says why."""
    monkeypatch.setattr(
        compat, "plain_tasks", lambda ids: [each for each in ids if each == "plain"]
    )
    late = bench.run("late", policy=INTERRUPTIBLE)
    bench.passed(11.0)
    told = bench.run("told", policy=INTERRUPTIBLE)
    steadfast = bench.run("steadfast")
    bench.receive("waiting", policy=INTERRUPTIBLE)
    names = ["told", "steadfast", "waiting", "late"]
    done = hand_over(bench.leases, [*(f"id-{name}" for name in names), "plain", "x"])
    states = [what["state"] for what in done.values()]
    assert states == ["told", "not_interruptible", "waits", "lost", "plain", "unknown"]
    assert bench.flags_of(told) == FLAG_SHUTDOWN
    assert bench.gate(told) == 0.0
    assert bench.flags_of(steadfast) == 0
    assert bench.flags_of(late) == FLAG_LOST


def test_a_command_says_how_many_were_told(bench: Bench) -> None:
    """One id or several; a worker without leases says so."""
    bench.run("a", policy=INTERRUPTIBLE)
    assert control.lease_hand_over(worker(bench), task_id="id-a") == {
        "ok": "1 of 1 task handed over",
        "tasks": {"id-a": {"state": "told", "task": "t"}},
        "worker": "w1",
    }
    assert (
        control.lease_hand_over(worker(bench), task_id=["x", "y"])["ok"]
        == "0 of 2 tasks handed over"
    )
    plain = SimpleNamespace(consumer=None)
    assert control.lease_hand_over(plain, task_id="x") == control.NO_LEASES


def test_the_best_answer_of_several_workers_counts() -> None:
    """A former holder knows the task, too."""
    replies = {
        "w1": {"tasks": {"a": {"state": "lost", "task": "t"}, "b": {"state": "unknown"}}},
        "w2": {"tasks": {"a": {"state": "told", "task": "t"}}},
        "w3": control.NO_LEASES,
    }
    assert outcomes(["a", "b"], replies) == [
        (f"t[a] on w2: {WORDS['told']}", True),
        ("b: not found at the 3 workers that replied", False),
    ]


def test_every_answer_of_a_worker_has_words() -> None:
    """All but that it does not know the task."""
    assert {*WORDS} == {*Reaction} - {Reaction.UNKNOWN}


def test_a_stack_is_of_the_task_that_still_runs(bench: Bench) -> None:
    """One that ended while it was looked at may have made room for another."""
    held = bench.run("a")
    bench.receive("waiting")
    pool: Any = SimpleNamespace(diagnose=lambda _: Diagnosis(Doing.BLOCKED, "read", 0.0, "frames"))
    state = worker(bench, pool=pool)
    assert control.lease_stack(state, task_id="id-a") == {
        "task": "t",
        "id": "id-a",
        "pid": 1,
        "doing": "blocked in a call (read)",
        "stack": "frames",
        "worker": "w1",
    }
    assert control.lease_stack(state, task_id="id-waiting") == {}
    assert control.lease_stack(SimpleNamespace(consumer=None), task_id="id-a") == {}

    def ends(_: Any) -> Diagnosis:
        bench.leases.complete(held.lease.claim.tag)
        return Diagnosis(Doing.BUSY)

    pool.diagnose = ends
    assert control.lease_stack(state, task_id="id-a") == {}


def test_what_a_task_does_is_put_into_words() -> None:
    """By each worker that runs it; where there is no stack, that is said."""
    what = {"task": "t", "id": "a", "pid": 7, "doing": "busy on CPU (98%)", "stack": ""}
    found = seen({"w2": what, "w1": {}, "w3": control.NO_LEASES})
    assert found == [("w2", what)]
    assert [*in_words(*found[0])] == ["t[a] on w2, process 7: busy on CPU (98%)", NO_STACK]
    assert [*in_words("w2", {**what, "stack": "frames"})][1] == "frames"
