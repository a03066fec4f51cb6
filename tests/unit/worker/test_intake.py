"""Whether a worker takes messages: who decides, and what wins."""

from __future__ import annotations

from celery_lease.worker.intake import Intake


def test_a_drain_can_end_and_a_stop_cannot() -> None:
    """Open, draining, open, stopping: the last one for good."""
    intake = Intake()
    assert (intake.is_open, intake.draining, intake.stopping) == (True, False, False)
    intake.drain()
    assert (intake.is_open, intake.draining, intake.stopping) == (False, True, False)
    intake.resume()
    assert intake.is_open
    intake.stop()
    intake.resume()
    assert (intake.is_open, intake.draining, intake.stopping) == (False, False, True)


def test_a_stop_during_a_drain_is_not_undone_by_its_end() -> None:
    """Whichever of the two comes first."""
    for steps in (("drain", "stop", "resume"), ("drain", "resume", "stop"), ("stop", "drain")):
        intake = Intake()
        for step in steps:
            getattr(intake, step)()
        assert not intake.is_open
        assert intake.stopping
