"""The driver's methods for exclusive keys, and how it runs a statement."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import psycopg

from celery_lease.brokers.pgmq.exclusive import ANSWER_TIMEOUT, NoKeyTable, PgmqKeys
from celery_lease.brokers.pgmq.lines import PARKED, PgmqLines
from celery_lease.brokers.qos import VirtualDriver
from celery_lease.core.delivery import Answer, Reaped

if TYPE_CHECKING:
    from collections.abc import Sequence

    from psycopg import sql

    from celery_lease.brokers.pgmq.connections import Connections
    from celery_lease.brokers.use import Use
    from celery_lease.core.keys import KeyAnswer, KeyUse
    from celery_lease.core.records import Recorded

logger = logging.getLogger("celery_lease.brokers.pgmq.driver")


class Keyed(VirtualDriver):
    """A driver with the keys of its database."""

    keys: PgmqKeys
    _connections: Connections
    _silent = False  # the last call was not answered

    @classmethod
    def lacking(cls, channel: Any, use: Use) -> tuple[str, str] | None:
        """Create the table of exclusive keys if tasks need them; return why that cannot be."""
        if not use.keys:
            return None
        driver: Any = cls.connect(channel)
        try:
            driver.keys.make_ready()
        except NoKeyTable as exc:
            return exc.why, exc.remedy
        finally:
            driver.close()
        return None

    def take_key(self, tag: str) -> KeyAnswer:
        return self.keys.take(tag)

    def keys_in_use(self) -> list[KeyUse]:
        return self._lines().in_use() if self.keys.exist() else []

    def key_in_use(self, key: str) -> KeyUse | None:
        return next(iter(self._lines().in_use(key)), None) if self.keys.exist() else None

    def key_awaited_by(self, task_id: str) -> str:
        return self._lines().awaited_by(task_id) if self.keys.exist() else ""

    def first_parked(self, most: int) -> list[Recorded]:
        return self._lines().first_parked(most) if self.keys.exist() else []

    def parked(self) -> dict[str, int]:
        try:
            return self._lines().parked() if self.keys.exist() else {}
        except (psycopg.Error, OSError) as exc:
            raise OSError(f"parked messages not counted: {exc}") from exc

    def reap(self, *, limit: int) -> list[Reaped]:
        """Look after parked messages; the server itself returns what has expired."""
        del limit
        try:
            self.keys.look_after()
        except (psycopg.Error, OSError) as exc:
            raise OSError(f"parked messages not checked: {exc}") from exc
        return []

    def _lines(self) -> PgmqLines:
        return PgmqLines(self._run, self.keys.prefix)

    def _purge(self, tags: Sequence[str]) -> dict[str, Answer]:
        """Delete parked messages; return the answers for those of *tags* that are such."""
        parked = [tag for tag in tags if tag.startswith(PARKED)]
        if not parked:
            return {}
        try:
            return dict(zip(parked, self._lines().purge(parked), strict=True))
        except (psycopg.Error, OSError) as exc:
            self._log_silence(exc)
            return dict.fromkeys(parked, Answer.UNKNOWN)

    def _run(
        self,
        statement: sql.SQL | sql.Composed,
        *values: object,
        then: sql.Composable | None = None,
    ) -> list[tuple[Any, ...]]:
        return self._connections.run(statement, values, timeout=ANSWER_TIMEOUT, then=then)

    def _log_silence(self, error: Exception | None) -> None:
        """Log that the database stopped answering, or answers again; each once."""
        if error is None and self._silent:
            self._silent = False
            logger.info("PostgreSQL answers for leases again")
        elif error is not None and not self._silent:
            self._silent = True
            logger.warning("PostgreSQL does not answer for leases: %s", error)
