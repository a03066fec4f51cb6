"""The broker of an app, for commands that look at it without a worker."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click
from kombu.exceptions import KombuError

from celery_lease import brokers
from celery_lease.core.errors import UnsupportedBroker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery import Celery

    from celery_lease.core.delivery import Driver

#: Exit code where nobody answers, as of Celery's own commands.
EX_UNAVAILABLE = 69
#: Seconds that a broker has to answer a command, before it counts as away.
PATIENCE = 5.0


def called(transport: str) -> str:
    """Return how people call a broker that kombu has another word for."""
    return {"amqp": "RabbitMQ", "sqs": "SQS"}.get(transport, transport)


class BrokerAway(click.ClickException):
    """The broker cannot be reached, or does not answer."""

    exit_code = EX_UNAVAILABLE

    def __init__(self, connection: Any, reason: object) -> None:
        super().__init__(
            f"broker {connection.as_uri()} does not answer: {str(reason).rstrip('.')}. Is it "
            "running, and is broker_url right?"
        )


@contextmanager
def reached(connection: Any) -> Iterator[Any]:
    """Yield a kombu connection that is open, and say in one line if its broker is away.

    Raises:
        BrokerAway: It cannot be reached, or does not answer for 5 s.
    """
    with connection:
        if connection.transport.driver_type == "redis":  # by itself it waits for ever
            bounds = {"socket_timeout": PATIENCE, "socket_connect_timeout": PATIENCE}
            connection.transport_options = {**bounds, **(connection.transport_options or {})}
        try:
            connection.ensure_connection(max_retries=1, interval_start=0.2)
            yield connection
        except BrokenPipeError:
            raise  # of whoever reads what is printed
        except _errors_of(connection) as exc:
            raise BrokerAway(connection, exc) from exc


def _errors_of(connection: Any) -> tuple[type[BaseException], ...]:
    return (*connection.connection_errors, *connection.channel_errors, KombuError, OSError)


@contextmanager
def driver_of(app: Celery, ability: str) -> Iterator[Driver]:
    """Yield a driver for an app's broker that has an *ability*, one of ``Capabilities``.

    Raises:
        click.ClickException: The broker cannot be reached, or does that by itself.
    """
    with reached(app.connection_for_read()) as connection:
        try:
            driver = brokers.driver(connection.default_channel)
        except UnsupportedBroker as exc:
            raise click.ClickException(str(exc)) from exc
        try:
            if not getattr(driver.capabilities, ability):
                name = called(connection.transport.driver_type)
                raise click.ClickException(f"{name} does this by itself: see its own tools")
            yield driver
        finally:
            driver.close()
