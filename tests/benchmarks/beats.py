"""What a beat costs in a prefork task, and beside weakincentives' attached heartbeat."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.figures import Figure

if TYPE_CHECKING:
    from benchmarks.bench import Bench

#: Names an interpreter that has Celery and weakincentives 0.27 (which needs Python 3.12).
OTHER_PYTHON = "WEAKINCENTIVES_PYTHON"
BESIDE = Path(__file__).with_name("beside_weakincentives.py")
NANOSECONDS = 1e9


def cost(bench: Bench, batches: int = 300, size: int = 5000) -> Figure:
    """Beat many times in a task of a prefork worker; the quickest batch is the undisturbed one."""
    with bench.scene("beats") as scene:
        scene.worker()
        result = scene.setup.app().send_task("benchmark.beats", (batches, size))
        each = sorted(seconds / size * NANOSECONDS for seconds in result.get(timeout=120))
    return Figure(
        name="a beat in a prefork task",
        unit="ns",
        target=250,
        measured=each[0],
        details={"median": each[len(each) // 2], "batches": batches, "beats_a_batch": size},
    )


def with_progress(bench: Bench, batches: int = 300, size: int = 5000) -> list[Figure]:
    """Beat with progress, and track items; the quickest batch is the undisturbed one."""
    with bench.scene("progress") as scene:
        scene.worker()
        result = scene.setup.app().send_task("benchmark.progress", (batches, size))
        took: dict[str, list[float]] = result.get(timeout=240)
    return [
        Figure(
            name=name,
            unit="ns",
            target=300,
            measured=min(took[kind]) / size * NANOSECONDS,
            details={"batches": batches, "beats_a_batch": size},
        )
        for kind, name in (("beat", "a beat with progress"), ("item", "an item of track()"))
    ]


def beside_weakincentives(_: Bench) -> Figure:
    """Compare a context's beat with weakincentives' heartbeat, attached to a lease extender."""
    return _compared("a beat, beside weakincentives 0.27's attached heartbeat", 0, target=0.25)


def attached_beside_weakincentives(_: Bench) -> Figure:
    """Compare a beat of our attached heartbeat with theirs."""
    return _compared("an attached heartbeat's beat, beside weakincentives 0.27's", 2, target=1.0)


def _compared(name: str, which: int, *, target: float) -> Figure:
    """Return one of the program's figures as a share of theirs."""
    python = os.environ.get(OTHER_PYTHON, sys.executable)
    done = subprocess.run(
        [python, str(BESIDE)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(_sources())},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    numbers = [float(word) for word in done.stdout.split()] if done.returncode == 0 else []
    return Figure(
        name=name,
        unit="x theirs",
        target=target,
        measured=numbers[which] / numbers[1] if numbers else None,
        digits=2,
        note=""
        if numbers
        else f"set {OTHER_PYTHON} to a Python 3.12 that has weakincentives and Celery",
        details=dict(zip(("beat_ns", "weakincentives_ns", "attached_ns"), numbers, strict=False)),
    )


def _sources() -> list[str]:
    """Return where celery_lease is, for an interpreter that does not have it."""
    import celery_lease

    return [str(Path(celery_lease.__file__).parent.parent)]
