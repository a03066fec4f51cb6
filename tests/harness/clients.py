"""A client of an app's workers that ends with its block."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery import Celery

    from harness.setup import Setup


@contextmanager
def client(setup: Setup, register: Callable[[Celery], Celery]) -> Iterator[Celery]:
    """Yield an app with the tasks that *register* gives it, for sending and for results.

    A result that is collected later, when the server is gone, would unsubscribe from it: 20
    seconds of reconnecting each, at the end of the session.
    """
    with register(setup.app()) as app:
        yield app
        gc.collect()
        consumer = getattr(app.backend, "result_consumer", None)
        if consumer is not None and hasattr(consumer, "_pubsub"):
            consumer.stop()
            consumer._pubsub = None
