"""What the workers of one cell go through; each scenario's facts are kept for its test.

::

    two workers: everything that a task can do, at the same time
    one of them is killed  ─► the other one, and a third that was started meanwhile
    one of these is stopped, as in a deploy ─► the last
    the last one is stopped with every slot taken and three messages reserved
"""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from harness.ledger import now
from harness.waiting import always, eventually
from harness.workers import WorkerOptions

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.ledger import Entry
    from harness.places import Place
    from harness.shell import Commands
    from harness.workers import Worker, WorkerFleet
    from matrix.cells import Cell

#: Seconds of a lease, and between two sweeps for expired ones.
EXTENSION = 3
REAPER = EXTENSION / 3
#: Beyond extension and reaper interval: polls, a fork, and a busy machine.
MARGIN = 5.0
BEYOND = 2.2 * EXTENSION
#: Options of a call whose lease is no matter of these seconds: what happens is no expiry.
LONG = {"lease": {"lease_extension": 60, "lease_interval": 1}}
#: Of what is to be lost in daemon mode, too, where silence alone is no reason.
CAPPED = {"lease": {"lease_max_duration": EXTENSION + 1}}
#: The longest that a worker's start or the tasks of one scene may need, on a busy machine.
PATIENCE = 90.0
RESERVED = 3
#: Seconds that a command waits for the workers' replies.
TIMEOUT = "5"


@dataclass(frozen=True, slots=True)
class Ran:
    """One task: its runs, and what else it wrote."""

    starts: list[Entry]
    others: list[str]

    @property
    def ends(self) -> int:
        return self.others.count("end")


class Play:
    """One cell's workers and tasks."""

    def __init__(
        self, cell: Cell, place: Place, results: str, fleet: WorkerFleet, commands: Commands
    ) -> None:
        setup = replace(place.setup, backend=results).having(task_ignore_result=False)
        self.cell, self.place, self.setup, self.fleet = cell, place, setup, fleet
        self.ledger, self.commands = fleet.ledger, commands
        self.app = replace(place, setup=setup).app()
        self.scenes: dict[str, Future[Any]] = {}
        self.ready_at = 0.0  #: when the first two workers were

    def run(self) -> None:
        """Play all scenes; what goes wrong in one is its test's to tell."""
        with self.app:
            for scene in (self.stick, self.work, self.kill, self.deploy, self.stop):
                self._keep(scene.__name__, scene)

    def _keep(self, name: str, call: Callable[[], Any]) -> Future[Any]:
        future = self.scenes[name] = Future()
        try:
            future.set_result(call())
        except BaseException as exc:  # noqa: BLE001  (raised again by who asks)
            future.set_exception(exc)
        return future

    # What all scenes use.

    def send(self, task: str, *args: object, **options: Any) -> str:
        return str(self.app.send_task(f"matrix.{task}", args, **options).id)

    def launch(self) -> Worker:
        options = WorkerOptions(
            module="matrix.app",
            queues=self.place.queue,
            pool=self.cell.pool,
            concurrency=self.cell.slots,
        )
        return self.fleet.launch(self.setup, options)

    def living(self) -> list[Worker]:
        """Return the workers that have not ended."""
        return [worker for worker in self.fleet.workers if worker.returncode is None]

    def ran(self, task_id: str) -> Ran:
        entries = self.ledger.entries(task_id=task_id)
        return Ran(
            [each for each in entries if each.event == "start"],
            [each.event for each in entries if each.event != "start"],
        )

    def ended(self, task_id: str) -> Ran:
        """Return what a task did once it has ended."""
        self.ledger.wait("end", task_id, within=PATIENCE)
        return self.ran(task_id)

    def holder(self, task_id: str, run: int) -> Worker:
        """Return the worker that began a task's run, once it has."""
        start = self.ledger.wait("start", task_id, count=run, within=PATIENCE)[run - 1]
        return next(each for each in self.fleet.workers if each.hostname == start.worker)

    # The scenes.

    def stick(self) -> Any:
        """Send the task that is silent; a solo worker that gets it has no use any more.

        It exits, and nothing else is sent before: RabbitMQ would hand it messages meanwhile.
        """
        options = {"headers": CAPPED} if self.cell.mode == "daemon" else {}
        task_id = self.send("stuck", BEYOND + 1, **options)
        if self.cell.slots == 1:
            worker = self.launch()
            worker.wait_ready(PATIENCE)
            self.ledger.wait("start", task_id)
            if self.cell.mode != "observe":
                worker.wait(PATIENCE)
        return task_id

    def work(self) -> None:
        """Let two workers do all that a task can do, at the same time."""
        tasks = {
            "alive": self.send("work", BEYOND),
            "quiet": self.send("quiet", BEYOND),
            "run": self.send("command"),
            "retry": self.send("again"),
            "eta": self.send("work", 0.0, countdown=EXTENSION + 2),
        }
        target = self.send("cancelled") if self.cell.is_askable else "t1"
        for worker in [self.launch(), self.launch()]:
            worker.wait_ready(PATIENCE)
        self.ready_at = now()
        if self.cell.is_askable:
            self.ledger.wait("start", target, within=PATIENCE)
        for name, ask in (
            ("status", self.status),
            ("explain", self.explain),
            ("cancel", self.cancel),
        ):
            self._keep(name, lambda ask=ask: ask(target))  # type: ignore[misc]
        for name, task_id in tasks.items():
            self._keep(name, lambda task_id=task_id: self.ended(task_id))  # type: ignore[misc]
        self._keep("stuck", lambda: self.ended(self.scenes["stick"].result()))

    def status(self, task_id: str) -> Any:
        """Ask for all leases."""
        done = self.commands.run(self.app, "status", "--json", "--timeout", TIMEOUT)
        return task_id, done.exit_code, done.stdout, done.output

    def explain(self, task_id: str) -> Any:
        """Ask for the story of a task that runs."""
        done = self.commands.run(self.app, "explain", task_id, "--timeout", TIMEOUT)
        hostname = self.holder(task_id, 1).hostname if self.cell.is_askable else ""
        return hostname, done.exit_code, done.output

    def cancel(self, task_id: str) -> Any:
        """Cancel a task that runs, where workers can be told so."""
        done = self.commands.run(self.app, "cancel", task_id, "--timeout", TIMEOUT)
        if self.cell.is_askable:
            self.ledger.wait("cancelled", task_id)
            result = self.app.AsyncResult(task_id)
            eventually(lambda: result.state == "REVOKED", what=lambda: result.state)
        return done.exit_code, done.output, self.ran(task_id)

    def kill(self) -> Any:
        """Kill a worker in the middle of a task."""
        if len(self.living()) < 2:
            self.launch().wait_ready(PATIENCE)
        task_id = self.send("work", 600.0, 0.1)
        victim = self.holder(task_id, 1)
        victim.kill_group()
        killed_at = now()
        self.launch()
        self.ledger.wait("start", task_id, count=2, within=PATIENCE)
        return self.ended(task_id), killed_at

    def deploy(self) -> Any:
        """Stop a worker while another one is there to go on with what it did."""
        for worker in self.living():
            worker.wait_ready(PATIENCE)
        task_id = self.send("handed", headers=LONG)
        stopped = self.holder(task_id, 1)
        asked_at = now()
        stopped.term()
        return self.ended(task_id), asked_at, stopped.wait(40)

    def stop(self) -> Any:
        """Stop the last worker, whose slots are all taken, with messages reserved."""
        for worker in self.living()[1:]:
            worker.term()
            worker.wait(40)
        (last,) = self.living()
        eventually(lambda: self.place.left() == 0, 30, every=0.2, what="nothing is left")
        # A solo worker receives nothing while its task runs, a green one whose slots are taken one
        # more message and no other.
        early = RESERVED if self.cell.slots == 1 else RESERVED - 1
        reserved = self.reserve(early, countdown=60)
        running = [self.send("work", 6.0, headers=LONG) for _ in range(self.cell.slots)]
        for task_id in running:
            self.ledger.wait("start", task_id, within=PATIENCE)
        reserved += self.reserve(RESERVED - early)
        back = lambda: f"{RESERVED} are back: {self.place.waiting()}, {self.ledger.entries()[-9:]}"  # noqa: E731
        asked_at = now()
        last.term()
        eventually(lambda: self.place.waiting() == RESERVED, 20, every=0.05, what=back)
        back_after = now() - asked_at
        ended_before = sum(self.ran(task_id).ends for task_id in running)
        # A read that was under way may bring them once more; they go back at once.
        stay = lambda: always(lambda: self.place.waiting() == RESERVED, 1.0, every=0.2)  # noqa: E731
        eventually(stay, 10, what="and stay there")
        code = last.wait(40)
        ended = [self.ran(task_id).ends for task_id in running]
        # RabbitMQ tells of what a quorum queue's consumers hold as it was up to five seconds ago.
        eventually(lambda: self.place.left() == RESERVED, 30, every=0.5, what=back)
        return back_after, ended_before, code, ended, reserved, self.take()

    def reserve(self, count: int, **options: Any) -> list[str]:
        """Have the worker receive messages that it does not start."""
        ids = [self.send("work", 0.0, headers=LONG, **options) for _ in range(count)]
        eventually(lambda: self.place.waiting() == 0, 20, every=0.1, what="all are received")
        return ids

    def take(self) -> list[str]:
        """Return the tasks of all messages that wait."""
        with self.app.connection_for_read() as connection:
            queue = self.app.amqp.queues[self.place.queue](connection.default_channel)
            return [str(each.headers["id"]) for each in iter(queue.get, None)]
