"""Opens the sources of a view of leases: the workers' remote control and the broker's records."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from celery_lease import settings
from celery_lease.cli.broker import called, driver_at, reached
from celery_lease.cli.workers import CannotAsk
from celery_lease.core.driver import Driver
from celery_lease.view import Sources
from celery_lease.view.asking import Asker, is_askable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery import Celery


@contextmanager
def sources(app: Celery) -> Iterator[Sources]:
    """Yield the sources for the leases at an app's broker.

    Raises:
        BrokerAway: The broker does not answer.
        CannotAsk: Workers cannot be asked there, and the broker has no records either.
    """
    with optional_sources(app) as found:
        if found.ask is None and found.records is None:
            raise CannotAsk(str(app.connection_for_write().transport.driver_type))
        yield found


@contextmanager
def optional_sources(app: Celery) -> Iterator[Sources]:
    """Yield the sources; both may be missing.

    Raises:
        BrokerAway: The broker does not answer.
    """
    with (
        reached(app.connection_for_write()) as written,
        reached(app.connection_for_read()) as read,
        driver_at(read) as driver,
    ):
        ask = Asker(app, written) if is_askable(written) else None
        able = (driver or Driver).capabilities
        records = driver.records() if driver and able.records else None
        name = called(read.transport.driver_type)
        lines: dict[str, Any] = {}
        if driver is not None:
            lines = {"parked": driver.parked, "first_parked": driver.first_parked}
        unavailable = "" if records else f"{name} keeps no record of leases"
        yield Sources(
            ask=ask,
            records=records,
            reap_within=reap_within(app) if able.reaps else 0.0,
            known=lambda: {} if ask is None else ask.known,
            unavailable=(driver or Driver).unrecorded or unavailable,
            **lines,
        )


def reap_within(app: Celery) -> float:
    """Return the seconds between two sweeps of a worker of this app, from its tasks' leases."""
    from celery_lease.worker.policies import Policies  # noqa: PLC0415  (every command imports this)

    try:
        with suppress(Exception):  # the app's own modules, which may have errors
            app.loader.import_default_modules()
        loaded = settings.load(app.conf)
        return loaded.reaper_interval_for(Policies(app, loaded).extensions())
    except settings.LeaseConfigError:
        return 0.0
