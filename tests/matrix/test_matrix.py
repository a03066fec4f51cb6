"""Every mode on every pool on every broker, with real workers.

By default a part is played in which each pair of mode and pool, pool and broker, mode and broker
is met, and each scenario on each pool and each broker; ``--whole-matrix`` plays all 60 cells. Some
cells are played at the same time, each on a queue of its own; a test reads one scenario of one
cell. Run with ``--dist loadfile``, for the cells are played by the process that reads them.
"""

from __future__ import annotations

import json
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from harness.places import place_of
from harness.shell import Commands
from harness.workers import WorkerFleet
from matrix.app import LINES
from matrix.cells import Cell, covering, known_fault, whole
from matrix.play import EXTENSION, MARGIN, REAPER, Play, Ran

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.brokers import RedisServer

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(1200), pytest.mark.long(3)]

#: Cells that are played at once: a dozen workers, of which most wait.
AT_ONCE = 5


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give each test all cells, and mark where its scenario is known to fail."""
    scenario = metafunc.function.__name__.removeprefix("test_")
    cells = whole() if metafunc.config.getoption("whole_matrix") else covering()
    metafunc.parametrize("cell", [_param(cell, scenario) for cell in cells])


def _param(cell: Cell, scenario: str) -> Any:
    fault = known_fault(cell, scenario)
    marks = [] if fault is None else [pytest.mark.xfail(reason=fault, strict=True)]
    return pytest.param(cell, id=str(cell), marks=marks)


class Plays:
    """All plays under way."""

    def __init__(self) -> None:
        self.begun: dict[Cell, tuple[Play, Future[None]]] = {}
        self.commands = Commands()
        self.skipped: dict[Cell, BaseException] = {}  #: whose server is not installed

    def scene(self, cell: Cell, name: str) -> Any:
        """Return what came of a scenario, once its play is over."""
        if cell in self.skipped:
            raise self.skipped[cell]
        play, over = self.begun[cell]
        self.commands.serve(over.done)
        over.result()
        if name not in play.scenes:  # its scene ended before; that one's error says why
            play.scenes["work"].result()
        return play.scenes[name].result()


@pytest.fixture(scope="module")
def plays(
    request: pytest.FixtureRequest,
    valkey: RedisServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Plays]:
    """Begin the plays of all tests that were chosen."""
    items = [item for item in request.session.items if isinstance(item, pytest.Function)]
    chosen = [item.callspec.params["cell"] for item in items if item.path == request.path]
    plays, threads, made = Plays(), ThreadPoolExecutor(AT_ONCE), list[Play]()
    for cell in dict.fromkeys(chosen):
        conf = {"lease_extension": EXTENSION, "lease_mode": cell.mode}
        try:
            place = place_of(cell.broker, request, broker_connection_retry_delay=1, **conf)
        except pytest.skip.Exception as exc:
            plays.skipped[cell] = exc
            continue
        fleet = WorkerFleet(tmp_path_factory.mktemp(str(cell)), str(cell))
        play = Play(cell, place, valkey.fresh_url(), fleet, plays.commands)
        made.append(play)
    for play in made:
        plays.begun[play.cell] = play, threads.submit(_played, play)
    yield plays
    threads.shutdown(cancel_futures=True)


def _played(play: Play) -> None:
    try:
        play.run()
    finally:
        play.fleet.close()


def test_alive(plays: Plays, cell: Cell) -> None:
    """I1: a task that outlasts its lease, by beats or by its process's life, runs once."""
    assert_ran_once(plays.scene(cell, "alive"))


def test_quiet(plays: Plays, cell: Cell) -> None:
    """I2: a silence that was declared is no loss."""
    assert_ran_once(plays.scene(cell, "quiet"))


def test_run(plays: Plays, cell: Cell) -> None:
    """A command that outlasts the lease keeps it by its output, which comes back whole."""
    ran = plays.scene(cell, "run")
    assert_ran_once(ran)
    (output,) = plays.begun[cell][0].ledger.entries("output", ran.starts[0].task_id)
    assert output.facts == {"code": 0, "lines": [f"line {each + 1}" for each in range(LINES)]}


def test_eta(plays: Plays, cell: Cell) -> None:
    """I1: a message that waits for longer than its lease is delivered once."""
    assert_ran_once(plays.scene(cell, "eta"))


def assert_ran_once(ran: Ran) -> None:
    assert [start.facts["deliveries"] for start in ran.starts] == [1]
    assert ran.ends == 1


def test_retry(plays: Plays, cell: Cell) -> None:
    """Each retry is a message of its own, with a greater token."""
    ran = plays.scene(cell, "retry")
    tokens = [start.facts["token"] for start in ran.starts]
    assert len(tokens) == 3
    assert tokens == sorted(set(tokens))


def test_stuck(plays: Plays, cell: Cell) -> None:
    """I2: who says nothing is run again; daemon mode: at the longest duration; observe: is told."""
    ran = plays.scene(cell, "stuck")
    if cell.mode == "observe":
        assert_ran_once(ran)
        logs = "".join(worker.log for worker in plays.begun[cell][0].fleet.workers)
        assert f"[{ran.starts[0].task_id}] is observed" in logs
        return
    first, second = ran.starts
    assert second.at - first.at > EXTENSION - 1
    since = max(first.at, plays.begun[cell][0].ready_at)  # a solo worker is there before the others
    assert second.at - since < EXTENSION + 1 + REAPER + 3 * MARGIN
    assert first.facts["token"] < second.facts["token"]


def test_killed(plays: Plays, cell: Cell) -> None:
    """I5: the task of a killed worker is taken over when its lease has expired."""
    ran, killed_at = plays.scene(cell, "kill")
    first, second = ran.starts
    assert second.at - killed_at < EXTENSION + REAPER + MARGIN
    assert first.facts["token"] < second.facts["token"]
    # A busy machine may have let a lease expire before its task began: a delivery more.
    logs = "".join(worker.log for worker in plays.begun[cell][0].fleet.workers)
    assert second.facts["deliveries"] == first.facts["deliveries"] + 1, logs


def test_deploy(plays: Plays, cell: Cell) -> None:
    """A stopping worker's interruptible task goes on elsewhere at once, not when it expires."""
    ran, asked_at, code = plays.scene(cell, "deploy")
    first, second = ran.starts
    assert ran.others == ["asked", "end"]
    assert first.worker != second.worker
    assert second.at - asked_at < 2 * MARGIN
    assert code == 0


def test_reserved(plays: Plays, cell: Cell) -> None:
    """I6: what no process has got goes back at once, for good; what runs ends, and counts."""
    back_after, ended_before, code, ended, reserved, left = plays.scene(cell, "stop")
    assert back_after < 1 + MARGIN
    assert ended_before == 0
    assert (code, set(ended), sorted(left)) == (0, {1}, sorted(reserved))


def test_cancel(plays: Plays, cell: Cell) -> None:
    """A task is told at its next beat, and is REVOKED; or one line says why that cannot be."""
    code, output, ran = plays.scene(cell, "cancel")
    if not cell.is_askable:
        assert_refused(code, output)
        return
    assert code == 0, output
    assert (len(ran.starts), ran.others) == (1, ["cancelled"])


def test_status(plays: Plays, cell: Cell) -> None:
    """A lease that is held is listed with its task; or one line says why that cannot be."""
    task_id, code, document, output = plays.scene(cell, "status")
    if not cell.is_askable and code:
        assert_refused(code, output)
        return
    assert code == 0, output
    listed = {row["id"]: row for row in json.loads(document)["leases"]}
    assert not cell.is_askable or listed[task_id]["state"] == "running"


def test_explain(plays: Plays, cell: Cell) -> None:
    """The story of a task that runs says where; or that workers cannot be asked."""
    hostname, code, output = plays.scene(cell, "explain")
    if not cell.is_askable:
        assert (code, "cannot be asked" in output) == (1, True), output
        return
    assert code == 0, output
    assert f"runs on {hostname}" in output


def assert_refused(code: int, output: str) -> None:
    assert code == 69
    (line,) = output.splitlines()
    assert line.startswith("Error: workers on ")
