"""Every log line about a lease says whose it is, in fields that a program can read."""

from __future__ import annotations

import ast
import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from celery_lease.brokers.redis.driver import RedisDriver
from celery_lease.core.delivery import Reaped
from celery_lease.core.fields import NAMES
from celery_lease.core.policy import OnLost
from celery_lease.core.ticket import Ticket
from celery_lease.observability import LeaseLogFilter
from celery_lease.observability.logs import NONE
from celery_lease.task.current import entered
from celery_lease.worker.diagnosis import Diagnosis, Doing
from celery_lease.worker.reaper import Reaper
from celery_lease.worker.telemetry import log_messages
from unit.fake_broker import POLICY, Bench
from unit.leased import LeasedRun

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCE = Path(__file__).parents[3] / "src" / "celery_lease"
#: How a line begins, or goes on, that is about one task or one lease.
ABOUT_ONE = re.compile(r"\btask %s|\blease %s|\blease of task|^lease not|^message %s not returned")
#: Where there is no lease but somebody's own queue and consumer, and what lines of plain tasks say.
OTHERS, PLAIN = {"extender/renewals.py"}, "without a lease"


def lines() -> Iterator[tuple[str, str, set[str | None]]]:
    """Yield each log call of the package: its file, its text, and its keywords."""
    for path in sorted(SOURCE.rglob("*.py")):
        texts: dict[str, str] = {}
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
                texts |= {ast.unparse(target): str(node.value.value) for target in node.targets}
            if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("logger."):
                first = node.args[0]
                text = getattr(first, "value", None) or texts.get(ast.unparse(first), "")
                name = path.relative_to(SOURCE).as_posix()
                yield name, str(text), {keyword.arg for keyword in node.keywords}


def test_every_line_about_one_lease_has_fields() -> None:
    """A new one without them is noticed here."""
    leased = [line for line in lines() if line[0] not in OTHERS and PLAIN not in line[1]]
    about_one = [line for line in leased if ABOUT_ONE.search(line[1])]
    assert len(about_one) > 15
    assert [line for line in about_one if "extra" not in line[2]] == []


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    return {name: getattr(record, name) for name in NAMES}


EXPECTED = {"task_id": "id-a", "task_name": "t", "lease": "a", "token": 1, "worker": "w1"}


def test_the_worker_s_lines_tell_task_lease_token_and_worker(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Whatever is said of a lease in its life."""
    caplog.set_level(logging.DEBUG)
    bench = Bench()
    held = bench.run()
    bench.passed(5.5)  # slow
    bench.passed(5.0)  # lost
    bench.leases.process_ended("a", "signal 9")
    log_messages.unproven(held)
    log_messages.stalled(held, 3.0, Diagnosis(Doing.BUSY))
    log_messages.disowned(held)
    bench.leases.discard("a")
    bench.run()
    bench.leases.close()  # while it holds that one
    records = [record for record in caplog.records if record.name.endswith("log_messages")]
    assert len(records) == 7
    for record in records:
        assert fields_of(record) == EXPECTED, record.getMessage()


def test_the_reaper_s_lines_tell_whose_lease_it_was(caplog: pytest.LogCaptureFixture) -> None:
    """Of a holder that is another worker, as far as its record tells."""
    about = {"id": "id-a", "task": "t", "token": 1, "worker": "w1"}

    class Driver:
        capabilities = RedisDriver.capabilities

        def parked(self) -> dict[str, int]:
            return {"q": 2}

        def reap(self, *, limit: int) -> list[Reaped]:
            assert limit
            return [Reaped(tag="a", queue="q", late=1.0, about=about)]

    reaper = Reaper(Driver())  # type: ignore[arg-type]
    reaper.run_once()
    assert reaper.stats.parked == {"q": 2}
    (record,) = caplog.records
    assert fields_of(record) == EXPECTED


@pytest.fixture
def run() -> LeasedRun:
    """A task under a lease."""
    return LeasedRun(id="id-a", task="t", tag="a", token=1, worker="w1")


def test_a_task_s_own_lines_get_the_fields_by_a_filter(run: LeasedRun) -> None:
    """What a line says itself stays; outside of a leased task there is a dash."""
    seen = LeaseLogFilter()
    with entered(run.context):
        inside = logging.makeLogRecord({"msg": "x"})
        own = logging.makeLogRecord({"msg": "x", "task_id": "another"})
        assert seen.filter(inside)
        assert seen.filter(own)
    assert fields_of(inside) == EXPECTED
    assert fields_of(own) == {**EXPECTED, "task_id": "another"}
    outside = logging.makeLogRecord({"msg": "x"})
    assert seen.filter(outside)
    assert set(fields_of(outside).values()) == {NONE}


def test_a_task_that_ignores_its_loss_says_so_with_fields(caplog: pytest.LogCaptureFixture) -> None:
    """In the task's process, where the ticket is all that is known."""
    run = LeasedRun(
        id="id-a", task="t", tag="a", token=1, worker="w1", on_lost=str(OnLost.CONTINUE)
    )
    run.expire()
    run.context.beat()
    (record,) = caplog.records
    assert fields_of(record) == EXPECTED


def test_the_ticket_that_a_worker_writes_has_all_of_them() -> None:
    """Under the names that a task process reads."""
    bench = Bench(POLICY)
    bench.receive()
    ticket = bench.leases.start("a")
    assert ticket is not None
    assert Ticket.from_dict(ticket).fields == EXPECTED
    bench.leases.close()
