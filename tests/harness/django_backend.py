"""A result backend on Django's database connection, as django-celery-results is one."""

from __future__ import annotations

import os
from typing import Any

from celery.backends.base import KeyValueStoreBackend

#: The variable with PostgreSQL's port.
PORT = "HARNESS_DJANGO_PORT"


class DjangoBackend(KeyValueStoreBackend):
    """Keeps results in one table; for workers and for a test's own process."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        from django.conf import settings

        if not settings.configured:
            engine = "django.db.backends.postgresql"
            place = {"HOST": "127.0.0.1", "PORT": os.environ[PORT], "USER": "postgres"}
            settings.configure(
                DATABASES={"default": {"ENGINE": engine, "NAME": "postgres", **place}}
            )

    def get(self, key: Any) -> Any:
        rows = self._run("SELECT value FROM results WHERE key = %s", key)
        return bytes(rows[0][0]) if rows else None

    def set(self, key: Any, value: Any) -> None:
        self._run(
            "INSERT INTO results VALUES (%s, %s) ON CONFLICT (key) DO UPDATE SET value = %s",
            *(key, value, value),
        )

    def _run(self, statement: str, key: Any, *values: Any) -> list[Any]:
        from django.db import connection

        key = key.decode() if isinstance(key, bytes) else key
        encoded = [each.encode() if isinstance(each, str) else each for each in values]
        with connection.cursor() as cursor:
            cursor.execute("CREATE TABLE IF NOT EXISTS results (key text PRIMARY KEY, value bytea)")
            cursor.execute(statement, (key, *encoded))
            return list(cursor.fetchall()) if cursor.description else []
