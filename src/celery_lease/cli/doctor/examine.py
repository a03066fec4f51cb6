"""Runs all checks: of the app, its broker and its workers.

A check that fails is reported and stops none of the others.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from celery_lease import brokers
from celery_lease.cli.broker import BrokerAway, BrokerUnfit, reached
from celery_lease.cli.doctor import deploy, leases, settings, tasks, whole_app, workers
from celery_lease.cli.doctor.case import Case, covered_tasks, task_policies
from celery_lease.cli.doctor.report import Report
from celery_lease.cli.doctor.survey import survey
from celery_lease.core.errors import UnsupportedBroker
from celery_lease.core.findings import Doctor, Finding, error, notice, ok, warning
from celery_lease.core.secrets import address_of, masked
from celery_lease.settings import LeaseConfigError, load

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

    from celery import Celery


def examine(
    app: Celery, timeout: float, *, grace: float | None = None, levels: int = 1, before: float = 0.0
) -> Report:
    """Check an app, its broker and its workers, without changing them.

    Args:
        app: The app.
        timeout: Seconds for the workers' replies.
        grace: As in :func:`.deploy.check`, like the next two.
        levels: The number of different priorities in a group of workers.
        before: Seconds of the grace period that pass before SIGTERM.
    """
    with app.connection_for_read() as connection:
        findings = list(_examine(app, connection, timeout, (grace, levels, before)))
        shown = [_without_passwords(each) for each in findings]
        return Report(app=app.main or "?", broker=address_of(connection), findings=shown)


def _without_passwords(finding: Finding) -> Finding:
    what, why, remedy = map(masked, (finding.what, finding.why, finding.remedy))
    return replace(finding, what=what, why=why, remedy=remedy)


def examine_here(app: Celery) -> Iterator[Finding]:
    """Yield the findings about an app's settings and tasks, without a connection."""
    with app.connection_for_read() as connection:  # never opened
        yield from map(_without_passwords, _here(app, connection.transport.driver_type))


def _examine(
    app: Celery, connection: Any, timeout: float, stop: tuple[float | None, int, float]
) -> Iterator[Finding]:
    case = yield from _here(app, connection.transport.driver_type)
    yield from _guarded("deploy", lambda: deploy.check(case, *stop))
    yield from _at_broker(case, connection, timeout)


def _here(app: Celery, driver_type: str) -> Generator[Finding, None, Case]:
    yield from _guarded("tasks.import", lambda: _imported(app))
    case = Case(app=app, loaded=None, policies={}, driver_type=driver_type)
    try:
        loaded = load(app.conf)
    except LeaseConfigError as exc:
        yield from settings.check_errors([exc])
    else:
        policies, errors = task_policies(app, loaded)
        case = replace(
            case,
            loaded=loaded,
            policies=policies,
            refused=len(errors),
            covered=covered_tasks(app, loaded),
        )
        yield from settings.check_errors(errors)
    yield from _guarded("settings", lambda: settings.check(case))
    yield from _guarded("tasks", lambda: tasks.check(case))
    return case


def _imported(app: Celery) -> Iterator[Finding]:
    """Import the modules that a worker of this app imports, for its tasks."""
    try:
        app.loader.import_default_modules()
        app.finalize()
    except LeaseConfigError as exc:
        yield from settings.check_errors([exc])


def _at_broker(case: Case, connection: Any, timeout: float) -> Iterator[Finding]:
    try:
        brokers.kind_of(connection)
        with reached(connection):
            yield ok("broker.reached", f"{address_of(connection)} answers")
            yield from _answering(replace(case, channel=connection.default_channel), timeout)
    except UnsupportedBroker as exc:
        yield _unsupported(exc, refused=case.loaded is None or case.loaded.enabled)
    except BrokerAway as exc:
        why = "Neither the broker nor the workers were checked."
        yield error("broker.reached", " ".join(exc.message.split()), why, exc.remedy)
    except BrokerUnfit as exc:
        why = "Messages cannot be kept there: neither the broker nor the workers were checked."
        yield error("broker.prepared", exc.what, why, f"{exc.remedy}.")


def _answering(case: Case, timeout: float) -> Iterator[Finding]:
    if case.can_ask:
        try:
            case = replace(case, workers=survey(case.app, case.driver, timeout))
        except Exception as exc:  # noqa: BLE001  (kombu's transports raise any kind)
            yield _failed("workers", exc)
            case = replace(case, unasked=True)
    doctor = case.driver.doctor()
    if doctor is not None:
        name = (case.driver.label or case.driver_type).lower()
        yield from _guarded(name, lambda: doctor.check(case))
        case = _with_clock(case, doctor)
    yield from _guarded("leases", lambda: leases.check(case))
    yield from _guarded("tasks", lambda: tasks.check_seen(case))
    yield from _guarded("tasks", lambda: whole_app.check(case))
    yield from _guarded("workers", lambda: workers.check(case, timeout))


def _with_clock(case: Case, doctor: Doctor) -> Case:
    try:
        return replace(case, broker_clock=doctor.clock(case))
    except Exception:  # noqa: BLE001  (the broker's own check reports it)
        return case


def _unsupported(exc: UnsupportedBroker, *, refused: bool) -> Finding:
    if not refused:
        return notice(
            "broker.supported",
            f"no leases on transport {exc.transport!r}",
            "With lease_enabled off workers start all the same, and take none.",
        )
    return error(
        "broker.supported",
        str(exc),
        "A worker with leased tasks does not start on it.",
        "Use one of the brokers named, or lease_enabled = False.",
    )


def _guarded(name: str, check: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
    """Yield the findings of a check, or one about its failure."""
    try:
        yield from check()
    except Exception as exc:  # noqa: BLE001  (a client library's, or an app's own)
        yield _failed(name, exc)


def _failed(name: str, exc: Exception) -> Finding:
    said = " ".join(str(exc).split())
    if name == "tasks.import":
        return error(
            name,
            f"the app's modules cannot be imported: {type(exc).__name__}: {said}",
            "A worker of this app does not start either.",
            "Import them by hand, to see the traceback: python -c 'import ...'.",
        )
    subject = name.partition(".")[0]
    return warning(
        f"{subject}.check",
        f"this could not be checked to its end: {type(exc).__name__}: {said}",
        "The broker did not answer as expected, or does not let this user ask.",
        "Try again with the rights of a worker; if it stays, please report it.",
    )
