"""The entry of ``INSTALLED_APPS``."""

from __future__ import annotations

from django.apps import AppConfig
from django.core.checks import register

from .checks import TAG, check_leases


class LeaseConfig(AppConfig):  # type: ignore[misc]  # Django has no types
    """Registers the checks; Django finds command and template by their places."""

    name = "celery_lease.contrib.django"
    label = "celery_lease"
    verbose_name = "Leases"

    def ready(self) -> None:
        register(check_leases, TAG)
