"""The parent's loop: waits for an event, asks the plan, and carries out its orders."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from celery_lease.core.clock import SystemClock

from . import processes
from .inbox import Inbox
from .plan import Plan, longest_stop

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .plan import Member, Order

logger = logging.getLogger(__name__)


class Parent:
    """Runs the members of one group, once, in the main thread."""

    def __init__(self, members: Iterable[Member], timeout: float) -> None:
        """Prepare; no process is started yet.

        Args:
            members: The members, with different names.
            timeout: Seconds that each level of priority has to end after its signal.
        """
        self._plan = Plan(members, timeout)
        self._timeout = timeout
        self._clock = SystemClock()
        self._names: dict[int, str] = {}  # of living members, by process id

    def run(self) -> int:
        """Start all members, and return the worst exit code when all have ended."""
        with Inbox() as inbox:
            self._start()
            while self._plan.living:
                self._run_once(inbox)
        logger.info("all have ended, the worst exit code is %d", self._plan.code)
        return self._plan.code

    def _start(self) -> None:
        for member in self._plan.living.values():
            pid = processes.spawn(member)
            self._names[pid] = member.name
            logger.info("%s started as process %d", member.name, pid)
        longest = longest_stop(self._timeout, self._plan.levels)
        logger.info("stopping takes %g s at most, allow for more than that", longest)

    def _run_once(self, inbox: Inbox) -> None:
        for number in inbox.wait(self._plan.time_left(self._clock.now())):
            logger.info("got %s", number.name)
            self._carry_out(self._plan.on_signal(number, self._clock.now()))
        for pid, code in processes.reap():
            self._reap(pid, code)
        self._carry_out(self._plan.on_time(self._clock.now()))

    def _reap(self, pid: int, code: int) -> None:
        name = self._names.pop(pid, None)
        if name is None:
            logger.debug("reaped orphan %d", pid)
            return
        processes.end_group(pid)
        logger.info("%s ended with exit code %d", name, code)
        self._carry_out(self._plan.on_end(name, code, self._clock.now()))

    def _carry_out(self, orders: Iterable[Order]) -> None:
        pids = {name: pid for pid, name in self._names.items()}
        for order in orders:
            logger.info("%s to %s", order.number.name, order.name)
            processes.deliver(pids[order.name], order.number)
