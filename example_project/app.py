"""The Celery application, for ``celery -A example_project.app worker``. No word of leases here."""

from __future__ import annotations

from celery import Celery

app = Celery("example_project", config_source="example_project.celeryconfig")
app.set_default()
