"""What the pools' adapters rely on in Celery's pools, and what they say of a task."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from textwrap import dedent
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest
from billiard.pool import LaxBoundedSemaphore, Pool
from celery.concurrency import ALIASES, get_implementation, prefork

from celery_lease.worker import pools

pytestmark = pytest.mark.compat


@pytest.mark.parametrize("pool", ["solo", "gevent", "eventlet"])
def test_pools_that_hold_up_the_main_loop_are_known_by_their_module(pool: str) -> None:
    """Imported from where their alias says; green ones only in their own workers."""
    assert ALIASES[pool].partition(":")[0] == f"celery.concurrency.{pool}"


def test_a_solo_pool_is_recognised() -> None:
    """And no other one."""
    solo, other = (
        SimpleNamespace(pool=object.__new__(get_implementation(name)), controller=None)
        for name in ("solo", "threads")
    )
    assert (pools.adapter(solo).in_loop, pools.adapter(other).in_loop) == (True, False)


@pytest.mark.parametrize("name", ["gevent", "eventlet"])
def test_a_green_task_lives_while_its_pool_has_its_greenlet(name: str) -> None:
    """Celery gives a greenlet's number for the process id, which may be any process's."""
    program = f"""
        import {name}
        from celery.concurrency import get_implementation
        from types import SimpleNamespace
        from celery_lease.worker import pools
        pool = get_implementation({name!r})(2)
        pool.on_start()
        consumer = SimpleNamespace(pool=pool, controller=None)
        lives, seen, numbers = pools.adapter(consumer).lives, [], []
        accept = lambda number, _: numbers.append(number)
        target = lambda: ({name}.sleep(0.05), seen.append(lives(numbers[0])))
        pool.on_apply(target, (), callback=lambda _: None, accept_callback=accept)
        pool.on_stop()
        {name}.sleep(0)
        assert seen == [True]
        assert not lives(numbers[0])
    """
    subprocess.run([sys.executable, "-c", dedent(program)], check=True, timeout=60)


def test_a_task_of_any_other_pool_lives_while_its_process_does() -> None:
    """A pool of threads gives the worker's own."""
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
    for name in ("prefork", "threads", "solo"):
        pool = object.__new__(get_implementation(name))
        adapter = pools.adapter(SimpleNamespace(pool=pool, controller=None))
        assert [adapter.lives(pid) for pid in (os.getpid(), child.pid)] == [True, False]


def test_a_pool_of_processes_without_the_event_loop_waits_for_one_at_its_lock() -> None:
    """``apply_async`` takes it for each task; it is free again when this has looked."""
    assert "self._putlock.acquire()" in inspect.getsource(Pool.apply_async)
    pool = object.__new__(prefork.TaskPool)
    pool.putlocks = True
    lock = LaxBoundedSemaphore(1)
    pool._pool = SimpleNamespace(_putlock=lock)
    lock.acquire()
    waiting = Thread(target=pools.wait_for_process, args=[pool])
    waiting.start()
    waiting.join(0.1)
    assert waiting.is_alive()
    lock.release()
    waiting.join(10.0)
    assert lock.acquire(blocking=False)


@pytest.mark.parametrize(
    ("module", "waits"),
    [
        ("kombu.transport.redis", True),
        ("amqp.transport", True),
        ("celery.events.dispatcher", True),
        ("celery.worker.pidbox", True),
        ("celery.concurrency.gevent", False),
    ],
)
def test_a_green_worker_that_waits_for_its_broker_is_found_out(module: str, waits: bool) -> None:
    """By its main greenlet's frame: the thread's is that of whoever looks."""
    greenlet = pytest.importorskip("greenlet")
    code: dict[str, Any] = {"__name__": module}
    exec("def wait(switch): switch()", code)  # noqa: S102
    pool = type("TaskPool", (), {"__module__": "celery.concurrency.gevent"})()
    adapters: list[pools.Pool] = []

    def main() -> None:
        adapters.append(pools.adapter(SimpleNamespace(pool=pool, controller=None)))
        code["wait"](looker.switch)

    looker = greenlet.getcurrent()
    worker = greenlet.greenlet(main)
    worker.switch()
    assert adapters[0].hangs_in() == (f"{module}.wait, line 1" if waits else "")
    worker.switch()
