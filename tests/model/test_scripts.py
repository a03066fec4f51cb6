"""The scripts against the model, and the machine against broken scripts."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from celery_lease.brokers.redis import scripts
from celery_lease.core.delivery import Answer, Renewal
from model.asking import Disagreement
from model.machine import LeaseMachine
from model.mutants import MUTANTS, Mutant
from model.stage import Stage

if TYPE_CHECKING:
    from collections.abc import Iterator

# A hunt is bounded by its plays, and a busy machine takes minutes for one.
pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

PLAIN = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
#: A find is enough: no shrinking. Derandomized, so that a mutant that is found once always is.
HUNT = settings(
    PLAIN,
    max_examples=2_000,  # few plays show a rare one
    phases=[Phase.generate],
    derandomize=True,
    report_multiple_bugs=False,
    database=None,
)


def play(stage: Stage, how: settings) -> None:
    """Run the machine on a stage."""
    factory: Any = partial(LeaseMachine, stage)  # hypothesis asks for a class, and takes this
    run_state_machine_as_test(factory, settings=how)


@pytest.fixture(scope="module")
def stage(model_url: str) -> Iterator[Stage]:
    """The scripts as they are."""
    with Stage(model_url) as stage:
        yield stage


def test_the_scripts_do_what_the_model_does(stage: Stage) -> None:
    """Whoever acts in whatever order: server and model give the same answers and agree."""
    play(stage, PLAIN)


def test_an_unheard_claim_that_plain_kombu_ended_is_not_returned_twice(stage: Stage) -> None:
    """Claimed, not heard of, expired, restored by kombu, reaped: then the asker comes back."""
    machine = LeaseMachine(stage)
    machine.publish(failed=False)
    machine.deliver_without_an_answer(worker=0, seconds=0, arrives=True)
    machine.a_plain_process_sweeps(timeout=0)
    machine.reap(worker=1, limit=100)
    machine.return_unclaimed(worker=0, which=0)
    machine.i0_the_server_is_looked_at()
    machine.i5_every_message_is_in_one_place()


def test_a_message_that_plain_kombu_returned_before_its_claim_is_not_claimed(stage: Stage) -> None:
    """Arrived, restored by a process with a short timeout: then the claim of its worker comes."""
    machine = LeaseMachine(stage)
    machine.publish(failed=False)
    machine.deliver_without_an_answer(worker=0, seconds=10, arrives=False)
    machine.time_passes(seconds=5)
    machine.a_plain_process_sweeps(timeout=0)
    machine.a_claim_arrives_late(worker=0, which=0)
    machine.i0_the_server_is_looked_at()
    machine.i5_every_message_is_in_one_place()


def test_a_message_whose_arrival_is_over_is_not_adopted(stage: Stage) -> None:
    """Its asker has given up: it goes back, and does not wait for a visibility timeout."""
    machine = LeaseMachine(stage)
    machine.publish(failed=False)
    machine.deliver_without_an_answer(worker=0, seconds=10, arrives=False)
    machine.time_passes(seconds=5)
    machine.a_message_without_a_lease_is_adopted(worker=0, which=0)
    assert not machine.plain


def test_a_stale_nonce_is_refused_by_every_call(stage: Stage) -> None:
    """INV-7: the message is held again, under the next nonce; its former holder changes nothing."""
    machine = LeaseMachine(stage)
    machine.publish(failed=False, home=("r", 6))
    machine.deliver(worker=0, seconds=10)
    machine.time_passes(seconds=10)
    machine.reap(worker=1, limit=100)
    machine.deliver(worker=1, seconds=40)
    former, current = machine.tags
    assert machine.stale([former, current]) == [True, False]
    driver = machine.driver(0)
    refused = [driver.extend([Renewal(former, 20, late)])[0] for late in (False, True)] + [
        driver.begin([former])[0],
        driver.complete([former])[0],
        driver.dead_letter(former, "q.dead"),
    ]
    for orderly in (False, True):
        refused += driver.requeue([former], orderly=orderly)
    assert set(refused) == {Answer.LOST}
    machine.i0_the_server_is_looked_at()
    machine.i4_nothing_else_has_changed()
    assert driver.complete([current]) == [Answer.HELD]


def test_every_script_of_the_driver_has_mutants() -> None:
    """A new script cannot go without; two of them move no message."""
    assert {each.script for each in MUTANTS} == set(scripts.NAMES) - {"leave", "list"}


def test_every_mutant_is_a_change_of_the_scripts_as_they_are() -> None:
    """Also of those that are hunted only when asked for; three had outlived the words they change.

    Each says so itself, naming what it does not find.
    """
    for each in MUTANTS:
        text = scripts.source(each.script)
        assert each.change(each.script, text) != text


def hunts() -> Iterator[Any]:
    """Yield the mutants, all but the first of each script for the long hunt only."""
    seen: set[str] = set()
    for each in MUTANTS:
        marks = [pytest.mark.mutants] if each.script in seen else []
        seen.add(each.script)
        yield pytest.param(each, marks=marks, id=f"{each.script}: {each.name}")


@pytest.mark.parametrize("mutant", list(hunts()))
def test_the_machine_finds_a_broken_script(mutant: Mutant, model_url: str) -> None:
    """Each fault of the list shows as a disagreement, not as an error of the script."""
    with Stage(model_url, mutant.change) as broken, pytest.raises(Disagreement):
        play(broken, HUNT)
