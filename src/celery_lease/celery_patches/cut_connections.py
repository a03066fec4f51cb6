"""Makes a result backend connect again after a restart of its database has cut its connection.

There are two such connections: Django's of a thread, which Celery closes for its own threads only
(celery/fixups/django.py), and those of SQLAlchemy's pool.

Upstream: not reported for threads that are not Celery's.
Versions: Celery 5.5.3 to 5.7.0.
"""

from __future__ import annotations

import sys
from typing import Any


def forget_connections(backend: Any) -> None:
    """Drop a result backend's connections after its last call failed in this thread."""
    django, conf = sys.modules.get("django.db"), sys.modules.get("django.conf")
    if django is not None and conf is not None and conf.settings.configured:
        django.connections.close_all()
    manager = getattr(backend, "session_manager", None)
    if manager is not None:
        manager._sessions.pop(backend.url, None)  # noqa: SLF001
        engine = manager._engines.pop(backend.url, None)  # noqa: SLF001
        if engine is not None:
            engine.dispose()
