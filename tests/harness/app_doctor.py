"""Leased tasks for ``celery -A harness.app_doctor lease doctor``, one of which never beats."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_lease import ToolContext, current_context
from celery_lease.task.task import LeasedTask
from harness.app import app
from harness.rabbitmq import with_queue

if TYPE_CHECKING:
    from celery import Celery


def beats(count: int, *, context: ToolContext) -> None:
    """Beat by a context."""
    for _ in range(count):
        context.beat()


def asks() -> None:
    """Beat by the current context."""
    current_context().beat()


def silent(number: int) -> int:
    """Never beat."""
    return number


def register(celery: Celery) -> Celery:
    """Give an app these tasks, and its one queue by name."""
    for function in (beats, asks, silent):
        celery.task(base=LeasedTask, name=f"doctor.{function.__name__}", shared=False)(function)
    celery.task(name="doctor.plain", shared=False)(silent)
    return with_queue(celery)


register(app)
