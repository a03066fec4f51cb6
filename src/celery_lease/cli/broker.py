"""The broker of an app, for commands that look at it without a worker."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from celery_lease import brokers
from celery_lease.core.errors import UnsupportedBroker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery import Celery

    from celery_lease.core.delivery import Driver


@contextmanager
def driver_of(app: Celery, ability: str) -> Iterator[Driver]:
    """Yield a driver for an app's broker that has an *ability*, one of ``Capabilities``.

    Raises:
        click.ClickException: The broker cannot be reached, or does that by itself.
    """
    with app.connection_for_read() as connection:
        try:
            brokers.check(connection)
            connection.ensure_connection(max_retries=1)
            driver = brokers.driver(connection.default_channel)
        except (UnsupportedBroker, OSError) as exc:
            raise click.ClickException(str(exc)) from exc
        try:
            if not getattr(driver.capabilities, ability):
                transport = connection.transport.driver_type
                raise click.ClickException(f"{transport} does this by itself: see its own tools")
            yield driver
        finally:
            driver.close()
