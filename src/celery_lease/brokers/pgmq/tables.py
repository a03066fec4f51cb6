"""The statements that create and check the tables of celery-lease beside pgmq's."""

from __future__ import annotations

from psycopg import sql

RIGHTS = ("SELECT", "INSERT", "UPDATE", "DELETE")


def grant(table: str) -> str:
    """Return the statement that lets another user use a table, without the user."""
    return f"GRANT {', '.join(RIGHTS)} ON {table} TO"


def making(table: str, create: str) -> sql.SQL:
    """Return the statement that creates a table or an index, in one transaction, if it is missing.

    IF NOT EXISTS alone fails where two workers create it at once.
    """
    return sql.SQL(f"""
    DO $$ BEGIN
        PERFORM pg_advisory_xact_lock(hashtext('{table}'));
        IF to_regclass('{table}') IS NULL THEN {create}; END IF;
    END $$""")


def rights(table: str) -> sql.SQL:
    """Return the query: whether the user may use a table, or create it; if it exists; the user."""
    return sql.SQL(f"""
    SELECT CASE WHEN to_regclass('{table}') IS NULL THEN has_schema_privilege('pgmq', 'CREATE')
        ELSE (SELECT bool_and(has_table_privilege(to_regclass('{table}'), privilege))
            FROM unnest(ARRAY{list(RIGHTS)}) AS privilege) END AS is_ours,
        to_regclass('{table}') IS NOT NULL AS exists,
        quote_ident(current_user) AS user""")  # noqa: S608  (ours)
