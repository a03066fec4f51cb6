"""Limits a warm shutdown with a broker that is silent without having closed the connection.

Upstream: https://github.com/celery/celery/issues/9705, repaired for lost connections and cold
shutdowns by https://github.com/celery/celery/pull/10570.
Versions: Celery 5.5.3 to 5.7.0, at a warm shutdown.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def bound_end(consumer: Any, seconds: float, leave: Callable[[], None]) -> None:
    """Call *leave* if the consumer does not close its connections within *seconds*.

    No task runs any more by then.
    """
    shutdown = consumer.shutdown

    def bounded_shutdown() -> None:
        timer = threading.Timer(seconds, leave)
        timer.daemon = True
        timer.start()
        try:
            shutdown()
        finally:
            timer.cancel()

    consumer.shutdown = bounded_shutdown
