"""A Django project whose videos are examined by leased tasks."""

from __future__ import annotations

from examples.django_app.celery import app as celery_app

__all__ = ["celery_app"]
