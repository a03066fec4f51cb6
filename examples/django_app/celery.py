"""The project's Celery app, as Celery's documentation for Django has it. No word of leases."""

from __future__ import annotations

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "examples.django_app.settings")

app = Celery("examples.django_app")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
