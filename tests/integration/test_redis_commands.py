"""Redis: what a leased task costs the server, beside one of stock Celery."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks.app import PLAIN
from harness.setup import Setup
from harness.waiting import eventually
from harness.workers import QUIET_PEERS, WorkerOptions

if TYPE_CHECKING:
    import redis

    from harness.brokers import RedisServer
    from harness.workers import WorkerFleet

#: Tasks a worker; many enough that what a worker asks for at its start does not count.
TASKS = 400
#: Calls for a task: one takes its message, and one acknowledges it. The rest is the worker's.
CALLS = 2.5
#: Commands more than stock Celery sends for a task, those within scripts included.
MORE = 6.0
#: The same of a plain task in a worker that has leased ones.
MORE_PLAIN = 2.0


def commands(client: redis.Redis) -> int:
    """Return how many commands the server has executed, those within scripts included."""
    stats: Any = client.info("commandstats")
    ours = ("cmdstat_llen", "cmdstat_zcard", "cmdstat_info")  # this test's
    return sum(each["calls"] for name, each in stats.items() if name not in ours)


def calls(client: redis.Redis) -> int:
    """Return how many calls of scripts the server has answered."""
    stats: Any = client.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("eval", "evalsha"))


Run = Callable[..., float]


@pytest.fixture
def run(valkey: RedisServer, fleet: WorkerFleet) -> Run:
    """Let a new worker do some tasks, and return what each of them has added to a count."""
    setup = Setup(valkey.fresh_url())
    app, client = setup.app(), valkey.client(setup.database)

    def run(count: Callable[[redis.Redis], int], name: str, *keys: str, **env: str) -> float:
        for key in keys or [""] * TASKS:
            headers = {"lease_key": key} if key else None
            app.send_task(name, ignore_result=True, headers=headers)
        before = count(client)
        extra = (*QUIET_PEERS, "--without-heartbeat")
        worker = fleet.start(setup, WorkerOptions(module="benchmarks.app", extra=extra, env=env))
        done = lambda: not client.llen("celery") and not client.zcard("unacked_index")  # noqa: E731
        eventually(done, 60, every=0.5)
        spent = count(client) - before
        worker.kill()
        return spent / TASKS

    return run


def test_what_a_task_costs_the_server_in_commands(run: Run) -> None:
    """Publishing aside. A leased one took 12 more when each script began with a write of its own.

    A plain one of a worker with leases took 15 more when another script than the one by which it
    arrived recorded it as a plain one.
    """
    plain = run(commands, "benchmark.plain", **{PLAIN: "1"})
    assert plain > 5  # it was counted
    assert run(commands, "benchmark.leased") < plain + MORE
    assert run(commands, "benchmark.plain") < plain + MORE_PLAIN


def test_a_free_key_costs_a_busy_worker_no_call_of_its_own(run: Run) -> None:
    """It is taken in the call that acknowledges the task before. It was a third call."""
    assert 1.9 < run(calls, "benchmark.keyed", *map(str, range(TASKS))) < CALLS
