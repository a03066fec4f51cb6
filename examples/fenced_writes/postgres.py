"""PostgreSQL: one statement compares and writes. It holds the row's lock while it does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from examples.fenced_writes import StaleError

if TYPE_CHECKING:
    from psycopg import Connection

SCHEMA = """
CREATE TABLE IF NOT EXISTS results (
    job text PRIMARY KEY, token bigint NOT NULL, value text NOT NULL
)
"""
WRITE = """
INSERT INTO results (job, token, value) VALUES (%s, %s, %s)
ON CONFLICT (job) DO UPDATE SET token = excluded.token, value = excluded.value
WHERE results.token <= excluded.token
"""


def write(connection: Connection[Any], job: str, token: int, value: str) -> None:
    """Write *value*; raise ``StaleError`` if a newer holder has written."""
    with connection.transaction():
        if not connection.execute(WRITE, (job, token, value)).rowcount:
            raise StaleError(job, token)
