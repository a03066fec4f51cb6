"""Every use of a Celery internal that the worker parts make, in one place.

Read in Celery 5.5.3 and 5.7.0; ``tests/unit/test_compat.py`` notices when one of them changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from celery.platforms import EX_FAILURE
from celery.worker import state

if TYPE_CHECKING:
    from celery.worker.consumer import Consumer


def task_of(message: Any) -> tuple[str, str, Mapping[str, object]]:
    """Return name, id and lease options of a task message, of protocol 2 or 1; else blanks.

    A message that cannot be read is nobody's leased task: Celery deals with it as it always does.
    """
    headers = message.headers
    if not isinstance(headers, Mapping):
        return "", "", {}
    facts: Any = headers
    if "task" not in headers:
        try:
            facts = message.payload
            facts["task"], facts["id"]
        except Exception:  # noqa: BLE001  (decoding a foreign body may raise anything)
            return "", "", {}
    options = headers.get("lease")
    return facts["task"], facts.get("id", ""), options if isinstance(options, Mapping) else {}


def mark_ready(request: Any) -> None:
    """Take a request out of the worker's lists of reserved and active ones."""
    state.task_ready(request)


def stop_worker() -> None:
    """Make the worker's main loop shut down warmly and exit with a failure."""
    state.should_stop = EX_FAILURE


def is_solo(consumer: Consumer) -> bool:
    """Whether tasks run inside the worker's main loop, which stands still meanwhile."""
    return type(consumer.pool).__module__ == "celery.concurrency.solo"


def channel_of(consumer: Consumer) -> Any:
    """Return the channel on which the worker consumes tasks."""
    return consumer.task_consumer.channel


def is_closing(consumer: Consumer) -> bool:
    """Whether the worker is stopping, rather than reconnecting."""
    from celery.bootsteps import RUN  # noqa: PLC0415

    return consumer.blueprint.state != RUN


def every(consumer: Consumer, seconds: float, call: Any) -> Any:
    """Call *call* now, and again while the main loop turns; return what can cancel it."""
    call()
    return consumer.timer.call_repeatedly(seconds, call)
