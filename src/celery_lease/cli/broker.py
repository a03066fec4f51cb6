"""Connects to an app's broker, for commands that work without a worker."""

from __future__ import annotations

from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import click
from kombu.exceptions import KombuError

from celery_lease import brokers, settings
from celery_lease.core.errors import UnsupportedBroker
from celery_lease.core.secrets import address_of, is_misread, said_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery import Celery

    from celery_lease.core.driver import Driver

#: Exit code if there is no answer, as of Celery's own commands.
EX_UNAVAILABLE = 69
#: The texts about an address whose password has an unescaped character, and the remedy.
MISREAD = "is not read as it is meant: its password ends at the first of / ? #"
ESCAPE = "Write %2F for /, %3F for ?, %23 for #, %40 for @, %3A for :, %25 for %"
#: Seconds for an answer of a broker, before it counts as away.
ANSWER_TIMEOUT = 5.0


def called(transport: str) -> str:
    """Return the usual name of a broker; kombu may use another one."""
    return brokers.driver_class(transport).label or transport


class BrokerAway(click.ClickException):
    """The broker cannot be reached, or does not answer."""

    exit_code = EX_UNAVAILABLE
    verb, question = "does not answer", "Is it running, and is broker_url right?"
    remedy = "Start it, or correct broker_url; on another host, look at the network between."

    def __init__(self, connection: Any, reason: object) -> None:
        said = said_of(connection, reason).rstrip(".")
        what = f"broker {address_of(connection)} {self.verb}: {said}"
        super().__init__(f"{what}. {self.question}{hint()}")


class BrokerRefuses(BrokerAway):
    """The broker answers, and refuses the user of the connection."""

    verb = "refuses"
    question = "Are user, password and virtual host in broker_url right?"
    remedy = "Correct broker_url, or give its user the rights at the broker."


def hint() -> str:
    """Return a hint for an error if no app was named, so that Celery's default was used."""
    ctx = click.get_current_context(silent=True)
    root = ctx.find_root().params if ctx else {}
    if "app" in root and root["app"] is None:
        return " No app was named: celery -A APP lease ..."
    return ""


def loaded_of(app: Celery) -> settings.Settings:
    """Return an app's settings.

    Raises:
        click.ClickException: They are wrong.
    """
    try:
        return settings.load(app.conf)
    except settings.LeaseConfigError as exc:
        raise click.ClickException(str(exc)) from exc


def check_addresses(conf: Any) -> None:
    """Check that the addresses of an app's broker are parsed as intended.

    Raises:
        click.ClickException: One is not; the error does not show it.
    """
    for name in ("broker_url", "broker_read_url", "broker_write_url"):
        urls = getattr(conf, name) or ()
        if any(map(is_misread, [urls] if isinstance(urls, str) else urls)):
            raise click.ClickException(f"{name} {MISREAD}. {ESCAPE}")


class BrokerUnfit(click.ClickException):
    """The broker answers, but needs preparation."""

    exit_code = EX_UNAVAILABLE

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(f"{what}. {remedy}.")
        self.what, self.remedy = what, remedy


@contextmanager
def reached(connection: Any) -> Iterator[Any]:
    """Open a kombu connection and yield it; errors of the broker become one line.

    Raises:
        BrokerAway: It cannot be reached, or does not answer for 5 s.
        BrokerRefuses: It refuses the user, the password or the database.
        BrokerUnfit: It lacks a requirement of leases.
    """
    driver = brokers.driver_class(connection.transport.driver_type)
    with connection:
        driver.bound(connection, ANSWER_TIMEOUT)
        try:
            connection.ensure_connection(max_retries=1, interval_start=0.2)
            yield connection
        except BrokenPipeError:
            raise  # of the reader of stdout
        except _errors_of(connection) as exc:
            raise (BrokerRefuses if driver.refuses(exc) else BrokerAway)(connection, exc) from exc
        except Exception as exc:
            if unfit := driver.unfit(exc):
                raise BrokerUnfit(*unfit) from exc
            raise


def _errors_of(connection: Any) -> tuple[type[BaseException], ...]:
    return (*connection.connection_errors, *connection.channel_errors, KombuError, OSError)


@contextmanager
def driver_at(connection: Any) -> Iterator[Driver | None]:
    """Yield a driver by an open *connection*; None: its transport has none."""
    if connection.transport.driver_type not in brokers.drivers():
        yield None
        return
    with closing(brokers.driver(connection.default_channel)) as driver:
        yield driver


@contextmanager
def driver_of(app: Celery, ability: str) -> Iterator[Driver]:
    """Yield a driver for an app's broker with an *ability*, an attribute of ``Capabilities``.

    Raises:
        click.ClickException: The broker cannot be reached, or does that without a driver.
    """
    with reached(app.connection_for_read()) as connection:
        try:
            driver = brokers.driver(connection.default_channel)
        except UnsupportedBroker as exc:
            raise click.ClickException(str(exc)) from exc
        with closing(driver):
            if not getattr(driver.capabilities, ability):
                name = called(connection.transport.driver_type)
                raise click.ClickException(f"{name} does this by itself: see its own tools")
            yield driver
