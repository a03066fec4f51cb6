"""Unit tests do not see each other's tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from celery import _state

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _own_shared_tasks() -> Iterator[None]:
    """Celery registers every task with all apps to come; a test's end with the test."""
    before = set(_state._on_app_finalizers)
    yield
    _state._on_app_finalizers.intersection_update(before)
