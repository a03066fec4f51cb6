"""The whole examination: what can be reached is asked, and each check has its say.

A check that fails says so and stops none of the others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from celery_lease import brokers
from celery_lease.cli.broker import BrokerAway, reached
from celery_lease.cli.doctor import deploy, leases, settings, tasks, workers
from celery_lease.cli.doctor.case import Case, load_settings, task_policies
from celery_lease.cli.doctor.findings import Finding, error, ok, warning
from celery_lease.cli.doctor.report import Report
from celery_lease.cli.doctor.survey import survey
from celery_lease.core.errors import UnsupportedBroker
from celery_lease.settings import LeaseConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from celery import Celery

#: Which module knows a broker, by kombu's ``Transport.driver_type``.
BROKERS = {"redis": "redis", "sqs": "sqs", "pgmq": "pgmq", "amqp": "rabbitmq"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What the command was asked. Seconds."""

    timeout: float  #: for workers to answer
    grace: float | None
    levels: int
    before: float


def examine(app: Celery, request: Request) -> Report:
    """Look at an app, its broker and its workers; nothing is changed there."""
    with app.connection_for_read() as connection:
        findings = list(_examine(app, connection, request))
        return Report(app=app.main or "?", broker=connection.as_uri(), findings=findings)


def _examine(app: Celery, connection: Any, request: Request) -> Iterator[Finding]:
    yield from _guarded("tasks.import", lambda: _imported(app))
    case = Case(app=app, loaded=None, policies={}, driver_type=connection.transport.driver_type)
    loaded = load_settings(app)
    if isinstance(loaded, LeaseConfigError):
        yield from settings.check_errors([loaded])
    else:
        policies, errors = task_policies(app, loaded)
        case = replace(case, loaded=loaded, policies=policies)
        yield from settings.check_errors(errors)
    yield from _guarded("settings", lambda: settings.check(case))
    yield from _guarded("tasks", lambda: tasks.check(case))
    yield from _guarded("deploy", lambda: deploy.check(case, *_stop(request)))
    yield from _at_broker(case, connection, request)


def _stop(request: Request) -> tuple[float | None, int, float]:
    return request.grace, request.levels, request.before


def _imported(app: Celery) -> Iterator[Finding]:
    """Import what a worker of this app imports, for its tasks."""
    try:
        app.loader.import_default_modules()
        app.finalize()
    except LeaseConfigError as exc:
        yield from settings.check_errors([exc])


def _at_broker(case: Case, connection: Any, request: Request) -> Iterator[Finding]:
    try:
        brokers.check(connection)
        with reached(connection):
            yield ok("broker.reached", f"{connection.as_uri()} answers")
            yield from _answering(replace(case, channel=connection.default_channel), request)
    except UnsupportedBroker as exc:
        yield _unsupported(exc)
    except BrokerAway as exc:
        yield _away(exc)


def _answering(case: Case, request: Request) -> Iterator[Finding]:
    if case.can_ask:
        try:
            case = replace(case, workers=survey(case.app, case.driver_type, request.timeout))
        except Exception as exc:  # noqa: BLE001  (whatever kombu's transport raises)
            yield _failed("workers", exc)
    module = BROKERS.get(case.driver_type)
    if module is not None:
        expert: Any = import_module(f"celery_lease.cli.doctor.{module}")
        yield from _guarded(module, lambda: expert.check(case))
        case = _with_clock(case, expert)
    yield from _guarded("leases", lambda: leases.check(case))
    yield from _guarded("workers", lambda: workers.check(case, request.timeout))


def _with_clock(case: Case, expert: Any) -> Case:
    read = getattr(expert, "clock", None)
    try:
        return replace(case, broker_clock=read(case)) if read else case
    except Exception:  # noqa: BLE001  (whatever the client raised, the broker's check said it)
        return case


def _away(exc: BrokerAway) -> Finding:
    return error(
        "broker.reached",
        " ".join(exc.message.split()),
        "Neither the broker nor the workers were checked.",
        "Start it, or correct broker_url; on another host, look at the network between.",
    )


def _unsupported(exc: UnsupportedBroker) -> Finding:
    return error(
        "broker.supported",
        str(exc),
        "A worker with leased tasks does not start on it.",
        "Use one of the brokers named, or lease_enabled = False.",
    )


def _guarded(name: str, check: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
    """Yield what a check finds, or that it failed."""
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
