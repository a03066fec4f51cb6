"""Each repair of Celery or kombu says what it repairs, and where that was seen."""

from __future__ import annotations

import pkgutil
from importlib import import_module

import pytest

from celery_lease import celery_patches

NAMES = [each.name for each in pkgutil.iter_modules(celery_patches.__path__)]


@pytest.mark.parametrize("name", NAMES)
def test_a_repair_names_its_upstream_issue_and_versions(name: str) -> None:
    """Whoever meets a newer Celery can look whether it is still wanted."""
    doc = import_module(f"{celery_patches.__name__}.{name}").__doc__ or ""
    upstream, _, versions = doc.partition("Upstream: ")[2].partition("\nVersions: ")
    assert upstream.startswith(("https://github.com/celery/", "not reported"))
    assert any(each in versions for each in ("Celery 5.", "kombu 5.", "billiard 4."))
