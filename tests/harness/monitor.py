"""A monitor of Celery events, as Flower is one."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery import Celery


@contextmanager
def listening(app: Celery, hear: Callable[[dict[str, Any]], None]) -> Iterator[Callable[[], None]]:
    """Pass all events from now on to *hear*; yields what waits for some for a moment."""
    with app.connection_for_read() as own:
        receiver = app.events.Receiver(own, handlers={"*": hear})
        with receiver.consumer_context(wakeup=False) as (connection, _, _):

            def listen() -> None:
                with suppress(TimeoutError):
                    connection.drain_events(timeout=0.1)

            listen()  # on Redis, only this subscribes: what was sent before would never come
            yield listen


@contextmanager
def lease_events(app: Celery) -> Iterator[Callable[[], list[dict[str, Any]]]]:
    """Listen to all events; yields what returns those about leases that came so far."""
    events: list[dict[str, Any]] = []
    state = app.events.State()  # as in Flower, which has to bear what it does not know

    def hear(event: dict[str, Any]) -> None:
        state.event(event)
        if event["type"].startswith("lease-"):
            events.append(event)

    with listening(app, hear) as listen:

        def heard() -> list[dict[str, Any]]:
            listen()
            return events

        yield heard
