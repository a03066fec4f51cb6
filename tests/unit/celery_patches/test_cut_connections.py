"""A result backend that failed begins with new connections."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from celery_lease.celery_patches import cut_connections

pytestmark = pytest.mark.compat


def test_connections_of_a_backend_that_failed_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLAlchemy's, as Celery keeps them, and Django's of the calling thread."""
    closed: list[str] = []
    django = SimpleNamespace(connections=SimpleNamespace(close_all=lambda: closed.append("django")))
    conf = SimpleNamespace(settings=SimpleNamespace(configured=True))
    monkeypatch.setitem(sys.modules, "django.db", django)
    monkeypatch.setitem(sys.modules, "django.conf", conf)
    session = pytest.importorskip("celery.backends.database.session")
    manager = session.SessionManager()
    manager.forked = True  # then it keeps them
    manager.create_session("sqlite://")
    manager._engines["sqlite://"].dispose = lambda: closed.append("sqlalchemy")
    cut_connections.forget_connections(SimpleNamespace(session_manager=manager, url="sqlite://"))
    assert closed == ["django", "sqlalchemy"]
    assert manager._engines == manager._sessions == {}
    conf.settings.configured = False  # something has imported Django, and nothing uses it
    cut_connections.forget_connections(SimpleNamespace())
    assert closed == ["django", "sqlalchemy"]
