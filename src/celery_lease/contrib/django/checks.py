"""The checks of ``lease doctor`` that need no broker, as system checks of ``manage.py check``."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click
from celery.app import app_or_default
from celery.loaders.default import Loader
from django.core import checks

from celery_lease.cli.broker import check_addresses
from celery_lease.cli.doctor.examine import examine_here
from celery_lease.core.findings import Finding, Severity, error, warning
from celery_lease.core.secrets import masked

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

TAG = "celery_lease"
#: The numbers in the ids, by check of the doctor; stable, for SILENCED_SYSTEM_CHECKS.
NUMBERS = {
    "settings.rule": 1,
    "settings.sense": 2,
    "settings.enabled": 3,
    "settings.tasks": 4,
    "settings.backend": 5,
    "settings.cancels": 6,
    "settings.prefetch": 7,
    "settings.remote_control": 8,
    "tasks.silent": 9,
    "tasks.import": 10,
    "django.app": 11,
    "django.broker": 12,
    "settings.check": 13,
    "tasks.check": 13,
}
MADE = {
    Severity.NOTICE: ("I", checks.Info),
    Severity.WARNING: ("W", checks.Warning),
    Severity.ERROR: ("E", checks.Error),
}
#: Celery's variable, which keeps it from running all checks again when it imports the tasks.
SKIP = "CELERY_SKIP_CHECKS"


def check_leases(app_configs: Iterable[Any] | None, **_: Any) -> list[Any]:
    """Return messages about the project's settings and tasks."""
    if app_configs is not None and TAG not in {each.label for each in app_configs}:
        return []
    return [_message(each) for each in _found() if each.severity is not Severity.OK]


def _message(finding: Finding) -> Any:
    severity = finding.severity
    if finding.check == "tasks.import" and severity is Severity.ERROR:
        severity = Severity.WARNING  # a web host may lack what only workers import
    letter, kind = MADE[severity]
    hint = " ".join(filter(None, (finding.why, finding.remedy)))
    number = NUMBERS[finding.check]
    return kind(finding.what, hint=hint or None, id=f"{TAG}.{letter}{number:03}")


def _found() -> list[Finding]:
    app = app_or_default()
    if isinstance(app.loader, Loader):
        yours = "Import the project's app in its __init__.py, as Celery's documentation has it."
        what = "no Celery app is known to this process"
        return [warning("django.app", what, "Tasks are sent to a broker of the defaults.", yours)]
    try:
        check_addresses(app.conf)
        with _no_further_checks():
            return list(examine_here(app))
    except click.ClickException as exc:
        said = exc.message
    except Exception as exc:  # noqa: BLE001  (kombu's, or of a missing client library)
        said = f"{type(exc).__name__}: {exc}"
    return [error("django.broker", masked(said), "No task can be sent.", "Correct broker_url.")]


@contextmanager
def _no_further_checks() -> Iterator[None]:
    before = os.environ.get(SKIP)
    os.environ[SKIP] = "true"
    try:
        yield
    finally:
        if before is None:
            del os.environ[SKIP]
        else:
            os.environ[SKIP] = before
