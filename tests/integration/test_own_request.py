"""A request class of a project's own beside a lease, in real workers of every pool."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.waiting import eventually
from harness.workers import WorkerFleet, WorkerOptions

if TYPE_CHECKING:
    from harness.brokers import RedisServer
    from harness.ledger import Ledger
    from harness.setup import Setup

pytestmark = pytest.mark.compat

MODULE = "harness.app_own_request"  # not imported here: its tasks would be all later apps', too
EXTENSION = 3.0  # its own
WAYS = ["own.base", "own.option"]


def options(pool: str) -> WorkerOptions:
    return WorkerOptions(module=MODULE, pool=pool, concurrency=1 if pool == "solo" else 2)


@pytest.mark.parametrize("pool", ["prefork", "threads", "solo", "gevent", "eventlet"])
def test_the_lease_is_kept_and_the_projects_own_methods_are_called(
    pool: str, setup: Setup, fleet: WorkerFleet, ledger: Ledger, valkey: RedisServer
) -> None:
    """A run longer than its lease happens once, and the message is gone.

    Failed before: it ran without a lease (``own.option``), or without the project's class and as
    a plain task (``own.base``).
    """
    with setup.app() as app:
        ids = [app.send_task(way, [1.5 * EXTENSION]).id for way in WAYS]
        fleet.start(setup, options(pool))
        for task_id in ids:
            ledger.wait("end", task_id, within=40)
            assert ledger.count("accepted", task_id) == 1
            assert [each.facts for each in ledger.entries("start", task_id)] == [{"deliveries": 1}]
    with valkey.client(setup.database) as client:
        eventually(lambda: not client.exists("unacked", "unacked.claims"))


def test_the_message_of_a_killed_worker_is_taken_over(
    setup: Setup, fleet: WorkerFleet, ledger: Ledger
) -> None:
    """Whichever way the class came; the new delivery knows that it is the second."""
    with setup.app() as app:
        first = fleet.start(setup, options("prefork"))
        ids = [app.send_task(way, [2]).id for way in WAYS]
        for task_id in ids:
            ledger.wait("start", task_id)
        first.kill()
        fleet.start(setup, options("prefork"))
        for task_id in ids:
            ledger.wait("end", task_id, within=40)
            runs = [each.facts["deliveries"] for each in ledger.entries("start", task_id)]
            assert runs == [1, 2]


def test_the_projects_own_method_hears_of_a_hard_time_limit(
    setup: Setup, fleet: WorkerFleet, ledger: Ledger
) -> None:
    """What Read the Docs has its class for."""
    with setup.app() as app:
        fleet.start(setup, options("prefork"))
        result = app.send_task("own.limited", [30])
        ledger.wait("hard", result.id, within=30)
        eventually(lambda: result.state == "FAILURE")
