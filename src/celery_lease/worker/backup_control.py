"""Answers lease commands while the worker's main loop cannot.

In a warm shutdown Celery closes its mailbox before it waits for the tasks, in a soft one it sleeps,
and in a solo worker the task runs in the loop. At those moments operators look at leases, or want
to end a task. So a thread with a broker connection of its own has a mailbox beside Celery's, and
answers the commands of :mod:`.control` that need no main loop, while the main loop is away.

Nothing depends on it: if the broker does not answer, commands stay unanswered, as Celery's own do.
"""

from __future__ import annotations

import logging
import socket
from collections import deque
from contextlib import suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import kombu
from kombu.pidbox import Node

from celery_lease.celery_patches.shared_fanout_queues import channel_of_its_own
from celery_lease.worker import compat, control
from celery_lease.worker.keeper import REST_WAIT
from celery_lease.worker.telemetry.about import introduction

if TYPE_CHECKING:
    from collections.abc import Mapping

    from celery.worker.consumer import Consumer

    from celery_lease.worker.registry import LeaseRegistry

logger = logging.getLogger(__name__)


def _stats(state: Any, **_: Any) -> dict[str, Any]:
    return {"lease": introduction(state.consumer)}


#: The commands that can be answered without the main loop.
HANDLERS = {
    "leases": control.leases,
    "lease_cancel": control.lease_cancel,
    "lease_hand_over": control.lease_hand_over,
    "lease_stack": control.lease_stack,
    "stats": _stats,
}
#: Seconds between two checks whether it is needed, longest wait for a command, and rest after a
#: failure.
LOOK_INTERVAL, WAIT, REST = 0.5, 0.3, 5.0
#: Seconds that the main loop may stand still in a stopping worker before it counts as away.
AWAY = 2.0
#: Seconds that a command is kept for which the main loop has the first chance to answer.
MEMORY = 3.0


class Mailbox(Node):
    """A mailbox beside the worker's own, under the same name but with a queue of its own."""

    def Consumer(  # noqa: N802  (kombu's name)
        self, channel: Any = None, no_ack: bool = True, accept: Any = None, **options: Any
    ) -> Any:
        """Return a consumer of the commands that are sent to all workers."""
        mailbox: Any = self.mailbox
        queue = mailbox.get_queue(f"{self.hostname}.leases")
        accept = mailbox.accept if accept is None else accept
        channel = channel or self.channel
        return kombu.Consumer(channel, [queue], no_ack=no_ack, accept=accept, **options)


class BackupControl:
    """Answers commands. For one thread; see the module."""

    def __init__(self, consumer: Consumer, leases: LeaseRegistry) -> None:
        self._consumer, self._leases = consumer, leases
        self._able = compat.takes_commands(consumer)
        self._connection: Any = None
        self._listener: Any = None
        self._node: Any = None
        #: Commands that arrived, with the time. The main loop may answer one as well, before or
        #: after: whoever asked goes by the first reply.
        self._heard: deque[tuple[float, Any, Any]] = deque(maxlen=100)

    def run_once(self) -> float:
        """Answer commands for a moment, if that may be needed; return the seconds to rest."""
        if self._leases.resting:
            self.close()
            return REST_WAIT
        if not self._able or (self._connection is None and not self._may_be_wanted()):
            return LOOK_INTERVAL
        try:
            if self._connection is None:
                self._listen()
            with suppress(socket.timeout):
                self._connection.drain_events(timeout=WAIT)
            self._answer()
        except Exception as exc:  # noqa: BLE001  (a lost broker raises many kinds of errors)
            logger.debug("no remote control commands while the main loop does not run: %s", exc)
            self.close()
            return REST
        return 0.0

    def close(self) -> None:
        """Close the connection; the next look opens another if it is needed."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):  # the connection itself may have failed
                connection.release()

    def _answer(self) -> None:
        """Answer commands if the main loop is away; forget those that it had the time to answer."""
        now, away = self._leases.clock.now(), self._main_is_away()
        while self._heard and (away or self._heard[0][0] < now - MEMORY):
            heard_at, body, message = self._heard.popleft()
            if heard_at >= now - MEMORY:
                self._node.state.lease_heard_at = heard_at
                self._node.handle_message(body, message)

    def _may_be_wanted(self) -> bool:
        """Whether to listen from now on; listening has to begin before a command is sent."""
        return self._leases.loop_is_task or len(self._leases) > 0

    def _main_is_away(self) -> bool:
        if self._leases.loop_is_task and self._leases.running():
            return True
        silence = self._leases.clock.now() - self._leases.loop_seen
        return self._leases.intake.stopping and (
            compat.is_closing(self._consumer) or silence > AWAY
        )

    def _listen(self) -> None:
        consumer = self._consumer
        app: Any = consumer.app
        self._connection = connection = app.connection_for_read()
        connection.ensure_connection(max_retries=1, timeout=REST)
        mailbox = compat.mailbox(app, connection)
        state = SimpleNamespace(app=app, hostname=consumer.hostname, consumer=consumer)
        node = Mailbox(consumer.hostname, state, channel_of_its_own(connection), HANDLERS, mailbox)

        def hear(body: Any, message: Any) -> None:
            if _is_wanted(body):
                self._heard.append((self._leases.clock.now(), body, message))

        self._listener = node.listen(callback=hear)
        self._node = node


def _is_wanted(body: Mapping[str, Any]) -> bool:
    """Whether a command can be answered here; otherwise Celery's own answer is better."""
    method = body.get("method")
    return method in HANDLERS and (method != "stats" or body.get("arguments") == control.WHO)
