"""Waiting for a condition instead of for a time."""

from __future__ import annotations

from celery_lease.testing.ports import free_port
from celery_lease.testing.waiting import always, eventually

__all__ = ["always", "eventually", "free_port"]
