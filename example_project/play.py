"""The play that the demo stages: start, kill, wait, gather what happened."""

from __future__ import annotations

import os
import sys
import time
import uuid
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from example_project.jobdir import JobDir
from example_project.packer import archive_checksum, expected_checksum
from example_project.show import Row, Screen, look, short
from example_project.stage import CONCURRENCY, PATIENCE, ROOT, StageError, Worker, running_workers
from example_project.verdict import Evidence, Kill, Outcome, judge, takeovers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from celery import Celery
    from celery.result import AsyncResult

TICK: Final = 0.1  # seconds between two looks
RIPE: Final = 0.3  # how far a job is when its worker is killed
WORKERS: Final = ("alpha", "beta")
TASK: Final = "example_project.tasks.pack"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayOptions:
    """What the user chose. Durations are seconds."""

    tree: Path
    jobs: int
    seconds: float
    kill: bool
    timeout: float


@dataclass(slots=True)
class Play:
    """One run, in a directory and with a queue and results that belong to nobody else."""

    options: PlayOptions
    home: Path
    broker: str
    foreign: bool  #: the broker outlives the run and must not keep anything of it
    queue: str = field(default_factory=lambda: f"example-{uuid.uuid4().hex[:8]}", init=False)
    kill: Kill | None = field(default=None, init=False)
    workers: list[Worker] = field(default_factory=list, init=False)
    results: dict[str, AsyncResult[dict[str, object]]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        """Make the directories, and settle what :mod:`example_project.celeryconfig` will read."""
        for name in ("jobs", "logs", "results", "tmp"):
            (self.home / name).mkdir()
        os.environ.update(self.environment)

    @property
    def jobs(self) -> Path:
        """Where the jobs' directories are."""
        return self.home / "jobs"

    @property
    def environment(self) -> dict[str, str]:
        """The settings of this run. Results are files: a named broker gets nothing to keep."""
        return {
            "EXAMPLE_BROKER_URL": self.broker,
            "EXAMPLE_RESULT_BACKEND": f"file://{self.home / 'results'}",
            "EXAMPLE_QUEUE": self.queue,
        }

    def run(self, screen: Screen) -> Outcome:
        """Play it to the end and judge it, with the workers gone by then.

        Raises:
            StageError: A worker could not be started, or the jobs took longer than the timeout.
        """
        began = time.monotonic()
        self.workers = [self._worker(name) for name in WORKERS]
        with running_workers(self.workers, self._patience):
            screen.say(f"broker {self.broker}; two workers of {CONCURRENCY} processes are starting")
            self._send(screen)
            expected = expected_checksum(self.options.tree)
            self._until_done(screen, began + self.options.timeout)
        return self._judge(expected, began)

    def stay(self, screen: Screen) -> None:
        """Run two workers until Ctrl-C, and start another one for every one that ends."""
        self.workers = [self._worker(name) for name in WORKERS]
        screen.say(f"Two new workers are running until Ctrl-C. Elsewhere, in {ROOT}, try:")
        screen.hint(self._hints())
        with suppress(KeyboardInterrupt), running_workers(self.workers, self._patience):
            while True:
                for worker in self.workers:
                    self._revive(worker, screen)
                screen.show(look(self.jobs))
                time.sleep(TICK)

    @contextmanager
    def own_queue(self) -> Iterator[None]:
        """Delete the run's queues at the end from a broker that outlives it."""
        try:
            yield
        finally:
            if self.foreign:
                with suppress(Exception):  # what went wrong before is what the user should see
                    self._delete_queues()

    @property
    def _patience(self) -> float:
        return PATIENCE if self.foreign else 0.0

    def _delete_queues(self) -> None:
        with _app().connection_for_write() as connection:
            for name in (self.queue, f"{self.queue}.dead"):
                queue = _app().amqp.queues[name](connection.default_channel)
                queue.declare()  # kombu's Redis deletes only what this connection has declared
                queue.delete()
                queue.exchange.delete()

    def _worker(self, name: str) -> Worker:
        name = f"{name}@{self.queue}"  # other demos may use the same broker
        log = self.home / "logs" / f"{name}.log"
        # A killed process removes none of its temporary files, so they are kept together here.
        return Worker(name, log, {**self.environment, "TMPDIR": str(self.home / "tmp")})

    def _send(self, screen: Screen) -> None:
        for number in range(1, self.options.jobs + 1):
            job, tree = self.jobs / f"job-{number}", self.options.tree.resolve()
            job.mkdir()
            self.results[job.name] = _app().send_task(
                TASK, (str(job), str(tree)), {"seconds": self.options.seconds}
            )
        screen.say(f"{self.options.jobs} jobs sent: pack {self.options.tree}")

    def _until_done(self, screen: Screen, deadline: float) -> None:
        while not all(result.ready() for result in self.results.values()):
            for worker in self.workers:
                worker.check()
            rows = look(self.jobs, self._dead_tokens())
            screen.show(rows)
            if self.options.kill and self.kill is None:
                self._kill_if_ripe(rows, screen)
            if time.monotonic() > deadline:
                raise StageError(self._timed_out())
            time.sleep(TICK)
        screen.show(look(self.jobs), at_once=True)

    def _timed_out(self) -> str:
        logs = "\n\n".join(f"{worker.name}:\n{worker.tail()}" for worker in self.workers)
        return f"not done after {self.options.timeout:g} s; the workers' last words:\n{logs}"

    def _kill_if_ripe(self, rows: list[Row], screen: Screen) -> None:
        """Kill the worker with most jobs, once all that can run do and one is far enough."""
        running = [row for row in rows if row.state == "running"]
        slots = min(len(rows), CONCURRENCY * len(self.workers))
        if len(running) < slots or max(row.fraction for row in running) < RIPE:
            return
        name, _ = Counter(row.worker for row in running).most_common(1)[0]
        worker = next(worker for worker in self.workers if worker.name == name)
        worker.kill()
        at = time.time()
        held = [row for row in look(self.jobs) if row.worker == name and row.state != "done"]
        busy = sum(row.worker != name for row in running)
        free = CONCURRENCY * (len(self.workers) - 1) - busy
        tokens = {row.job: row.token for row in held}
        self.kill = Kill(worker=name, at=at, tokens=tokens, free=free)
        jobs = ", ".join(f"{row.job} (lease {row.lease()})" for row in held)
        screen.say(f"SIGKILL to {short(name)}, pid {worker.pid}, which holds {jobs}")

    def _dead_tokens(self) -> dict[str, int]:
        return self.kill.tokens if self.kill else {}

    def _judge(self, expected: str, began: float) -> Outcome:
        jobs = [self._evidence(name, result) for name, result in self.results.items()]
        left, wanted, conf = _messages_left(self.queue), self.options.kill, _app().conf
        return Outcome(
            jobs=jobs,
            expected=expected,
            kill=self.kill,
            takeovers=takeovers(jobs, self.kill),
            promised=conf.lease_extension + conf.lease_reaper_interval + 1,
            checks=judge(jobs, expected, self.kill, kill_wanted=wanted, left=left),
            seconds=time.monotonic() - began,
        )

    def _evidence(self, job: str, result: AsyncResult[dict[str, object]]) -> Evidence:
        directory = JobDir(self.jobs / job)
        archive = directory.archive
        return Evidence(
            job=job,
            state=str(result.state),
            ledger=directory.ledger(),
            manifest=directory.manifest(),
            archive_sha256=archive_checksum(archive) if archive.exists() else None,
        )

    def _revive(self, worker: Worker, screen: Screen) -> None:
        if worker.ended():
            screen.say(f"{short(worker.name)}, pid {worker.pid}, has ended; starting it again")
            worker.end()
            worker.start()

    def _hints(self) -> list[str]:
        settings = " ".join(f"{name}={value}" for name, value in self.environment.items())
        celery = f"{sys.executable} -m celery -A example_project.app"
        arguments = f"""'["{self.jobs}/another", "{self.options.tree.resolve()}"]'"""
        return [
            f"export {settings}",
            f"{celery} call {TASK} --args={arguments} --kwargs='{{\"seconds\": 30}}'",
            f"{celery} inspect active",
            "kill -KILL PID, kill -STOP PID, kill -CONT PID    # of the holder in the table",
        ]


def _app() -> Celery:
    """Import the application late: it reads the environment that a run has settled by then."""
    from example_project.app import app  # noqa: PLC0415

    return app


def _messages_left(queue: str) -> int:
    """Count what waits in the queue; what was received and not acknowledged is back there, too."""
    with _app().connection_for_read() as connection:
        channel: Any = connection.default_channel
        # Not passive: on Redis an empty queue is none. The options are those of the workers.
        count: int = channel.queue_declare(queue, durable=True, auto_delete=False).message_count
        return count
