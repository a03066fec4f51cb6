"""The requirements of pgmq on a database and on the names of queues, and their errors."""

from __future__ import annotations

from typing import Any

from psycopg import errors

from celery_lease.core.words import page

#: Characters that pgmq allows in a queue's name, which is part of the names of its tables.
LONGEST = 47

_AS_SQL = "broker_transport_options = {'init_extension': False}"


def unfit_name(connection: Any, queue: str) -> str:
    """Return the reason why pgmq does not allow a *queue*, named as in kombu; "": it does."""
    prefix = connection.transport_options.get("queue_name_prefix", "")
    name = str(type(connection.transport).Channel.entity_name(None, prefix + queue))
    if len(name) <= LONGEST:
        return ""
    return f"which has {len(name)} characters at pgmq, and it allows {LONGEST}"


def unfit(exc: BaseException) -> tuple[str, str] | None:
    """Return the reason and the remedy for an error of a database that has to be prepared."""
    said = str(exc).partition("\n")[0]
    if isinstance(exc, (errors.InvalidSchemaName, errors.UndefinedFunction)):
        return (
            f"pgmq is not in this database: {said}",
            f"CREATE EXTENSION pgmq, or install its SQL: {page('pgmq')}",
        )
    if isinstance(exc, (errors.FeatureNotSupported, errors.UndefinedFile)):
        return (
            f"this server has no pgmq extension: {said}",
            f"Install its SQL, see {page('pgmq')}, and set {_AS_SQL}",
        )
    if isinstance(exc, errors.InsufficientPrivilege):
        return (
            f"this user may not use pgmq: {said}",
            f"Grant it the schema pgmq; if it may not make extensions, set {_AS_SQL}",
        )
    if isinstance(exc, errors.RaiseException) and "queue name" in said:
        return (
            f"pgmq refuses the name of a queue: {said}",
            "Shorten it; for remote control, worker_enable_remote_control = False does without it",
        )
    return None
