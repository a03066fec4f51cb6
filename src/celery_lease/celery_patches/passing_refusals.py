"""Makes a worker reconnect after a temporary error of its broker, such as a refused write.

Upstream: not reported as such; Celery only reconnects after ``connection_errors``.
Versions: Celery 5.5.3 to 5.7.0.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from kombu import exceptions

if TYPE_CHECKING:
    from collections.abc import Callable


#: Seconds before the next connection to a broker that refuses all commands.
REFUSED = 1.0


def reconnect_after(consumer: Any, will_pass: Callable[[Exception], bool]) -> None:
    """Make the consumer reconnect after temporary errors.

    At the worker's start it does so if Celery's ``broker_connection_retry_on_startup`` allows
    retries.
    """
    blueprint = consumer.blueprint
    start = blueprint.start

    def start_again(parent: Any) -> None:
        try:
            start(parent)
        except Exception as exc:
            if not will_pass(exc):
                raise
            threading.Event().wait(REFUSED)  # such a server accepts the next connection at once
            if parent.restart_count == 0 and parent.task_consumer is None:
                # Celery takes it for reached, and so for no longer part of the start.
                parent.first_connection_attempt = True
            # Every transport of kombu has it among its ``connection_errors``.
            raise exceptions.ConnectionError(f"refused for now: {exc}") from exc

    blueprint.start = start_again
