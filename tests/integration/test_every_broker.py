"""What leases promise, on every broker, with real workers: the same tasks and the same scenes.

A play is one queue and three workers at one broker; all plays run at the same time, and each test
reads one scene of one of them. What a broker cannot do its tests are not made for: see
``harness.places``.
"""

from __future__ import annotations

import json
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from celery_lease import brokers
from celery_lease.brokers import identity
from harness.app_leased import EXTENSION
from harness.ledger import now
from harness.places import ABILITIES, PGMQ, VISIBILITY, Place, place_of
from harness.shell import lease_command
from harness.waiting import always, eventually
from harness.workers import Worker, WorkerFleet, WorkerOptions

if TYPE_CHECKING:
    from harness.ledger import Entry

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(300), pytest.mark.long]

#: Seconds between a death and the next run beyond extension and reaper interval: polls, a fork,
#: and a busy machine.
MARGIN = 5.0
REAPER = EXTENSION / 3
#: A call's options with which a stopping worker waits for the task.
LONG = {"lease": {"lease_extension": 30}}
#: Options of a task that has to keep its lease on a busy machine; it outlasts that, too.
PATIENT = {"lease": {"lease_extension": 2 * EXTENSION}}
#: Losses that ``any.die`` may have.
MOST_LOSSES = 2


class Play:
    """One broker's scenes, in their order; a later one needs only workers of an earlier one."""

    def __init__(self, broker: str, place: Place, fleet: WorkerFleet) -> None:
        self.broker = broker
        self.place, self.fleet, self.ledger = place, fleet, fleet.ledger
        self.app = place.app()
        self.scenes: dict[str, Future[Any]] = {}

    def run(self) -> None:
        """Play all scenes; what goes wrong in one is its tests' to tell."""
        for scene in (
            self.requeue,
            self.work,
            self.fence_and_kill,
            self.end,
            self.move_dead_letter,
        ):
            future = self.scenes[scene.__name__] = Future()
            try:
                future.set_result(scene())
            except BaseException as exc:  # noqa: BLE001  (raised again by who asks)
                future.set_exception(exc)

    def send(self, task: str, *args: object, **options: Any) -> str:
        return str(self.app.send_task(f"any.{task}", args, **options).id)

    def launch(self, concurrency: int) -> Worker:
        options = WorkerOptions(
            module="harness.app_leased", queues=self.place.queue, concurrency=concurrency
        )
        return self.fleet.launch(self.place.setup, options)

    def runs(self, task_id: str) -> list[Entry]:
        """Return the starts of a task."""
        return self.ledger.entries("start", task_id)

    def settled(self, task_id: str) -> list[Entry]:
        """Return the starts of a task once it has ended."""
        self.ledger.wait("end", task_id, within=90)
        return self.runs(task_id)

    def requeue(self) -> Any:
        """Stop a worker that runs one task and has received three others."""
        running = self.send("work", 6.0, headers=LONG)
        for _ in range(3):
            self.send("work", 0.1)
        worker = self.launch(1).wait_ready()
        self.ledger.wait("start", running)
        eventually(lambda: self.place.waiting() == 0, 20, what="all are received")
        asked_at = now()
        worker.term()
        eventually(lambda: self.place.waiting() == 3, 10, what="three are back")
        back_after = now() - asked_at
        stay = always(lambda: self.place.waiting() == 3, 1.0, every=0.2)
        ended_before = self.ledger.count("end")
        code = worker.wait(40)
        counts = self.ledger.count("end"), self.place.waiting()
        return back_after, stay, ended_before, code, counts

    def work(self) -> Any:
        """Let two workers do all that a task can do, at the same time."""
        for worker in [self.launch(2), self.launch(2)]:
            worker.wait_ready()
        later: dict[str, Any] = {"countdown": VISIBILITY + 3, "headers": PATIENT}
        tasks = {
            "long": self.send("work", VISIBILITY + 4.0, headers=PATIENT),
            "silent": self.send("silent", 60.0),
            "eta": self.send("work", 0.1, **later),
            "covered long": self.send("covered_late", VISIBILITY + 4.0, headers=PATIENT),
            "covered eta": self.send("covered_early", 0.1, **later),
            "again": self.send("again"),
            # Lost by its process's end alone, however busy the machine is.
            "die": self.send("die", headers=LONG),
        }
        starts = {name: self.settled(tasks[name]) for name in tasks if name != "die"}
        eventually(lambda: self.place.dead() == 1, 60, every=0.2, what="it is put aside")
        return starts | {"die": self.runs(tasks["die"])}

    def fence_and_kill(self) -> Any:
        """Stop a holder until its task runs elsewhere, let it end, then kill the next holder.

        If the first one's acknowledgement counted, there would be nothing left to run then.
        """
        task_id = self.send("stubborn", 3.0, 60.0, 3.0)
        former = self.holder(task_id, 1)
        former.stop_group()
        current = self.holder(task_id, 2)
        former.cont_group()
        self.ledger.wait("end", task_id)
        former.wait_log("its result is discarded")
        eventually(lambda: now() - self.runs(task_id)[1].at > EXTENSION, 20, what="an extension")
        held = self.place.waiting() == 0 and len(self.runs(task_id)) == 2
        current.kill_group()
        killed_at = now()
        current.wait()
        self.ledger.wait("start", task_id, count=3, within=60)
        lost = self.lost(task_id) if "losses" in ABILITIES[self.broker] else []
        taken_over = self.runs(task_id)[2].at - killed_at
        self.ledger.wait("end", task_id, count=2)
        return held, taken_over, self.runs(task_id), lost

    def lost(self, task_id: str) -> list[Any]:
        """Return what the broker's record says about the losses of a task that runs."""
        with (
            self.app.connection_for_read() as connection,
            closing(brokers.driver(connection.default_channel)) as driver,
        ):
            records = driver.records()
            return [*records.losses(next(iter(records.leases(task_id))).tag)]

    def holder(self, task_id: str, run: int) -> Worker:
        """Return the worker that began a task's run, once it has."""
        start = self.ledger.wait("start", task_id, count=run, within=60)[run - 1]
        return next(each for each in self.fleet.workers if each.hostname == start.worker)

    def end(self) -> Any:
        """Stop the last worker, after all that happened to it."""
        eventually(lambda: self.place.left() == 0, 20, every=0.2, what="nothing is left")
        (last,) = [worker for worker in self.fleet.workers if worker.returncode is None]
        last.term()
        return last.wait(40), self.place.left()

    def move_dead_letter(self) -> Any:
        """Look at the dead letter, and send it back."""
        listed = self.lease("dead", "list")
        task_id = self.scenes["work"].result()["die"][0].task_id
        shown = json.loads(self.lease("dead", "show", task_id))
        sent = self.lease("dead", "retry", task_id)
        eventually(lambda: self.place.waiting() == 1, what="it is back")
        return task_id, listed, shown, sent, self.place.dead()

    def lease(self, *arguments: str) -> str:
        """Run a ``celery lease`` command and return what it said."""
        return lease_command(self.place.setup, "harness.app_leased", *arguments)


@dataclass
class Plays:
    """All plays under way."""

    begun: dict[str, tuple[Play, Future[None]]]
    threads: ThreadPoolExecutor

    def scene(self, broker: str, name: str) -> Any:
        """Return what came of a scene, once its play is over."""
        play, over = self.begun[broker]
        over.result()
        return play.scenes[name].result()


BROKERS = [name for name in ABILITIES if name != "pgmq" or PGMQ]


def able(*needed: str) -> Any:
    """Make a test for every broker that has some abilities."""
    return pytest.mark.parametrize(
        "broker", [name for name in BROKERS if set(needed) <= ABILITIES[name]]
    )


@pytest.fixture(scope="module")
def plays(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Begin the plays of all tests that were chosen."""
    chosen = {
        item.callspec.params["broker"]
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.path == request.path
    }
    threads = ThreadPoolExecutor(len(BROKERS))
    begun = {}
    for name in [each for each in BROKERS if each in chosen]:
        place = place_of(
            name, request, broker_connection_retry_delay=1, lease_tasks=["any.covered*"]
        )
        host = name.replace(" ", "-")
        fleet = WorkerFleet(tmp_path_factory.mktemp(host), host)
        play = Play(name, place, fleet)
        begun[name] = play, threads.submit(play.run)
    yield Plays(begun, threads)
    threads.shutdown(cancel_futures=True)
    for play, _ in begun.values():
        play.fleet.close()


@able()
def test_a_stopping_worker_hands_back_at_once(plays: Plays, broker: str) -> None:
    """I6: before its running task ends, and for good; that one ends and is acknowledged."""
    back_after, stay, ended_before, code, counts = plays.scene(broker, "requeue")
    assert back_after < 1 + MARGIN
    assert stay, "it is not given the same messages again"
    assert ended_before == 0
    assert (code, counts) == (0, (1, 3))


@able()
def test_a_task_that_outlasts_every_timeout_runs_once(plays: Plays, broker: str) -> None:
    """I1: whatever the broker would do with a message that is held for so long."""
    (start,) = plays.scene(broker, "work")["long"]
    assert start.facts["deliveries"] == 1


@able()
def test_a_task_that_waits_for_its_time_runs_once(plays: Plays, broker: str) -> None:
    """I1: a worker that holds a message until its ETA keeps it from all others."""
    (start,) = plays.scene(broker, "work")["eta"]
    assert start.facts["deliveries"] == 1


@able()
@pytest.mark.parametrize("task", ["covered long", "covered eta"])
def test_an_undecorated_task_of_lease_tasks_runs_once(plays: Plays, broker: str, task: str) -> None:
    """I1: kept by its process, or, if it is acknowledged early, while it waits."""
    assert len(plays.scene(broker, "work")[task]) == 1


@able()
def test_a_silent_task_is_ended_and_run_once_more(plays: Plays, broker: str) -> None:
    """I2: a lease is not extended without a beat."""
    first, second = plays.scene(broker, "work")["silent"]
    assert EXTENSION - 1 < second.at - first.at < EXTENSION + REAPER + 3 * MARGIN
    assert (first.facts["deliveries"], second.facts["deliveries"]) == (1, 2)
    assert first.facts["token"] < second.facts["token"]


@able()
def test_a_token_grows_over_the_retries_of_a_task(plays: Plays, broker: str) -> None:
    """Each is a message of its own, of the same task."""
    tokens = [start.facts["token"] for start in plays.scene(broker, "work")["again"]]
    assert len(tokens) == 3
    assert tokens == sorted(set(tokens))


@able("losses")
def test_a_task_that_kills_its_processes_is_put_aside(plays: Plays, broker: str) -> None:
    """After as many losses as it may have it is a dead letter, and the workers work on."""
    assert len(plays.scene(broker, "work")["die"]) == MOST_LOSSES


@able()
def test_no_worker_loses_more_processes_than_a_task_may_kill(plays: Plays, broker: str) -> None:
    """Also where each worker knows of the losses only that it saw."""
    starts = Counter(start.worker for start in plays.scene(broker, "work")["die"])
    assert max(starts.values()) <= MOST_LOSSES
    assert starts.total() >= MOST_LOSSES


@able()
def test_a_dead_letter_can_be_looked_at_and_sent_back(plays: Plays, broker: str) -> None:
    """By the same commands everywhere."""
    task_id, listed, shown, sent, dead = plays.scene(broker, "move_dead_letter")
    assert f"any.die[{task_id}]  lost {MOST_LOSSES} times" in listed
    assert (shown["task_id"], shown["losses"]) == (task_id, MOST_LOSSES)
    causes = [(each["cause"], each["note"]) for each in shown["history"]]
    assert causes == [("SIGKILL, perhaps out of memory", "about to die")] * MOST_LOSSES
    assert all(each["worker"] and each["delivery"] and each["token"] for each in shown["history"])
    assert sent == "1 message replayed\n"
    assert dead == 0


@able()
def test_a_stopped_worker_settles_nothing_afterwards(plays: Plays, broker: str) -> None:
    """I4: its task ends, and neither result nor acknowledgement count: the next holder's run."""
    held, _, starts, _ = plays.scene(broker, "fence_and_kill")
    assert held, "the next holder ran on, undisturbed"
    assert len(starts) == 3
    tokens = [start.facts["token"] for start in starts]
    assert tokens == sorted(set(tokens))


@able()
def test_a_killed_workers_task_is_taken_over(plays: Plays, broker: str) -> None:
    """I5: extension, sweep and a second, on a busy machine."""
    _, taken_over, _, _ = plays.scene(broker, "fence_and_kill")
    assert taken_over < EXTENSION + REAPER + MARGIN


@able("counts")
def test_every_delivery_is_counted(plays: Plays, broker: str) -> None:
    """Whoever lost it, by whatever death."""
    _, _, starts, _ = plays.scene(broker, "fence_and_kill")
    assert [start.facts["deliveries"] for start in starts] == [1, 2, 3]


@able("losses")
def test_a_loss_that_another_worker_finds_names_its_cause(plays: Plays, broker: str) -> None:
    """A worker on the same host sees that the holder stands still, or was killed.

    The first loss counts only if that holder had told the broker before that the task had begun.
    """
    _, _, starts, lost = plays.scene(broker, "fence_and_kill")
    told = [(each["worker"].rsplit(":", 2)[0], each["reason"], each["cause"]) for each in lost]
    first, second = starts[0].worker, starts[1].worker
    assert told[-1] == (second, "expired", identity.DIED)
    assert told[:-1] in ([], [(first, "expired", identity.STOPPED)])


@able()
def test_nothing_is_left(plays: Plays, broker: str) -> None:
    """I5: every message was acknowledged or put aside, and the last worker ends as it should."""
    assert plays.scene(broker, "end") == (0, 0)
