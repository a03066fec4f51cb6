"""The rolling-restart scene: a deploy in the middle of the work, and nothing is done twice.

All workers are asked to stop and started anew, one after the other, while they seal trees. A seal
is interruptible: its next beat raises ShutdownRequested, its message is requeued, and its next run
continues from the checkpoint. What is promised is judged from the ledgers of the jobs.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from example_project.jobdir import JobDir
from example_project.play import RIPE, TICK, WORKERS, Play, _app, _messages_left
from example_project.sealing import expected_seal
from example_project.show import Screen, look, short
from example_project.stage import CONCURRENCY, PATIENCE, StageError, Worker, running_workers
from example_project.tasks import CHECKPOINT_EVERY
from example_project.verdict import Check, Evidence

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

TASK: Final = "example_project.tasks.seal"


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """How one worker left when it was told to."""

    worker: str
    code: int | None  #: None: it did not, and was killed
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """All that is known at the end."""

    jobs: Sequence[Evidence]
    restarts: Sequence[Restart]
    checks: Sequence[Check]
    seconds: float

    @property
    def good(self) -> bool:
        """Whether every promise was kept."""
        return not any(check.faults for check in self.checks)


@dataclass(slots=True)
class Rolling:
    """The scene, on the stage of the other one."""

    play: Play
    restarts: list[Restart] = field(default_factory=list)

    def run(self, screen: Screen) -> End:
        """Play it to the end and judge it.

        Raises:
            StageError: A worker could not be started, or the jobs took longer than the timeout.
        """
        began, play = time.monotonic(), self.play
        deadline = began + play.options.timeout
        workers = play.workers = [play._worker(name) for name in WORKERS]  # noqa: SLF001
        with running_workers(workers, 0.0):
            screen.say(f"broker {play.broker}; two workers of {CONCURRENCY} processes are starting")
            self._send(screen)
            expected = expected_seal(play.options.tree)
            self._until(self._is_ripe, screen, deadline)
            for worker in workers:
                self._restart(worker, screen, deadline)
            self._until(self._is_done, screen, deadline)
        jobs = [self._evidence(name) for name in play.results]
        checks = judge(jobs, expected, self.restarts, left=_messages_left(play.queue))
        return End(
            jobs=jobs,
            restarts=self.restarts,
            checks=checks,
            seconds=time.monotonic() - began,
        )

    def _send(self, screen: Screen) -> None:
        play = self.play
        jobs = CONCURRENCY * len(WORKERS)  # every process has one
        for number in range(1, jobs + 1):
            job = play.jobs / f"job-{number}"
            job.mkdir()
            play.results[job.name] = _app().send_task(
                TASK,
                (str(job), str(play.options.tree.resolve())),
                {"seconds": play.options.seconds},
            )
        screen.say(f"{jobs} jobs sent: seal {play.options.tree}")

    def _restart(self, worker: Worker, screen: Screen, deadline: float) -> None:
        """Tell a worker to stop, start it anew when it has left, and wait until it has work."""
        screen.say(f"SIGTERM to {short(worker.name)}, pid {worker.pid}")
        asked_at, ready = time.monotonic(), _ready(worker)
        worker.terminate()
        worker.wait(asked_at + PATIENCE)
        code = worker.process.returncode if worker.process else None
        took = time.monotonic() - asked_at
        self.restarts.append(Restart(worker=worker.name, code=code, seconds=took))
        worker.end()
        worker.start()
        self._until(lambda: _ready(worker) > ready, screen, deadline)
        self._until(lambda: self._is_ripe() or self._is_done(), screen, deadline)

    def _until(self, done: Callable[[], bool], screen: Screen, deadline: float) -> None:
        while not done():
            screen.show(look(self.play.jobs))
            for worker in self.play.workers:
                worker.check()
            if time.monotonic() > deadline:
                raise StageError(self.play._timed_out())  # noqa: SLF001
            time.sleep(TICK)

    def _is_ripe(self) -> bool:
        """Whether every process runs a job and one of them is far enough."""
        running = [row for row in look(self.play.jobs) if row.state == "running"]
        workers = {row.worker for row in running}
        return len(workers) == len(WORKERS) and max(row.fraction for row in running) >= RIPE

    def _is_done(self) -> bool:
        return all(result.ready() for result in self.play.results.values())

    def _evidence(self, job: str) -> Evidence:
        directory = JobDir(self.play.jobs / job)
        return Evidence(
            job=job,
            state=str(self.play.results[job].state),
            ledger=directory.ledger(),
            manifest=directory.manifest(),
            archive_sha256=directory.archive.read_text() if directory.archive.exists() else None,
        )


def judge(
    jobs: Sequence[Evidence], expected: str, restarts: Sequence[Restart], *, left: int
) -> list[Check]:
    """Hold the evidence against the promises; ``left`` messages were still in the queue."""
    return [
        Check("every job ended in SUCCESS", _each(jobs, _not_successful)),
        Check(
            "every worker was restarted, and left by itself with exit code 0",
            _bad_restarts(restarts),
        ),
        Check("every restarted worker handed a job over", _kept(jobs, restarts)),
        Check("every job went on where it was handed over", _each(jobs, _not_resumed)),
        Check("every job was finished once, by its last holder", _each(jobs, _not_finished_once)),
        Check("every seal is right", _each(jobs, lambda job: _wrong(job, expected))),
        Check("no message is left in the queue", (f"{left} are",) if left else ()),
    ]


def _ready(worker: Worker) -> int:
    return worker.log.read_text(errors="replace").count(" ready.") if worker.log.exists() else 0


def _each(jobs: Sequence[Evidence], fault_of: Callable[[Evidence], str | None]) -> tuple[str, ...]:
    return tuple(f"{job.job}: {fault}" for job in jobs if (fault := fault_of(job)))


def _bad_restarts(restarts: Sequence[Restart]) -> tuple[str, ...]:
    bad = [f"{short(one.worker)} left with {one.code}" for one in restarts if one.code != 0]
    return (*bad, *([] if len(restarts) == len(WORKERS) else [f"{len(restarts)} restarts"]))


def _kept(jobs: Sequence[Evidence], restarts: Sequence[Restart]) -> tuple[str, ...]:
    handed = {line.holder.worker for job in jobs for line in job.lines("handed over")}
    return tuple(short(one.worker) for one in restarts if one.worker not in handed)


def _not_successful(job: Evidence) -> str | None:
    return None if job.state == "SUCCESS" else f"is {job.state}"


def _not_resumed(job: Evidence) -> str | None:
    """Each start but the first follows a handover, and is at most one checkpoint behind it."""
    starts, handed = job.lines("start"), job.lines("handed over")
    if len(starts) != len(handed) + 1:
        return f"begun {len(starts)} times after {len(handed)} handovers"
    for one, other in zip(handed, starts[1:], strict=True):
        if not int(one.note) - CHECKPOINT_EVERY <= int(other.note) <= int(one.note):
            return f"handed over at {one.note}, taken up at {other.note}"
    return None


def _not_finished_once(job: Evidence) -> str | None:
    finishes = job.lines("finish")
    newest = max((line.holder.token for line in job.lines("start")), default=None)
    if [line.holder.token for line in finishes] == [newest]:
        return None
    return f"finished by {[line.holder.token for line in finishes]}, the last holder was {newest}"


def _wrong(job: Evidence, expected: str) -> str | None:
    claimed = (job.manifest or {}).get("sha256")
    if claimed == job.archive_sha256 == expected:
        return None
    return f"{claimed} and, on disk, {job.archive_sha256}; right is {expected}"
