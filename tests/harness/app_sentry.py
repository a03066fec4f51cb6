"""Leased tasks beside Sentry's Celery integration, which wraps what Celery calls of a task.

Worker: ``celery -A harness.app_sentry worker``. What Sentry would send goes to the ledger.
"""

# mypy: disable-error-code="untyped-decorator, misc, no-untyped-call"

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import sentry_sdk
from celery import Task
from sentry_sdk.integrations.celery import CeleryIntegration
from sentry_sdk.transport import Transport

from celery_lease import current_context, leased_task
from harness.app_own_request import BuildRequest
from harness.ledger import record
from harness.setup import Setup

if TYPE_CHECKING:
    from sentry_sdk.envelope import Envelope

EXTENSION = 3


class ToLedger(Transport):
    """Sends nothing."""

    def capture_envelope(self, envelope: Envelope) -> None:
        """Write down what the envelope tells."""
        for item in envelope.items:
            payload: Any = item.payload.json or {}
            errors = [each["type"] for each in payload.get("exception", {}).get("values", ())]
            record(f"sentry {item.type}", task=payload.get("transaction"), errors=errors)


class OwnTask(Task[Any, Any] if TYPE_CHECKING else Task):
    """A task class of the app's with a request class and a call of its own."""

    abstract = True
    Request = BuildRequest

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it, as Flask does in its context."""
        return super().__call__(*args, **kwargs)


sentry_sdk.init(
    "http://key@127.0.0.1:9/1",
    transport=ToLedger,
    integrations=[CeleryIntegration()],
    traces_sample_rate=1.0,
    default_integrations=False,
)
app = Setup.from_env().app()
app.Task = OwnTask


@leased_task(name="sentry.long", lease_extension=EXTENSION)
def long(seconds: int) -> int:
    """Beat once a second."""
    for _ in current_context().track(range(seconds)):
        time.sleep(1)
    return current_context().deliveries


@leased_task(name="sentry.stuck", lease_extension=EXTENSION, lease_watchdog_threshold=60)
def stuck() -> int:
    """Lose the lease in the first run, and hear of it."""
    if current_context().deliveries == 1:
        time.sleep(3 * EXTENSION)
        current_context().beat()
    return current_context().deliveries


@leased_task(name="sentry.fails", lease_extension=EXTENSION)
def fails() -> None:
    """Fail."""
    raise ValueError("failed")
