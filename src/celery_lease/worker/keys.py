"""Which exclusive key a message's task needs. For the consuming thread.

The key that the message brings holds; where a sender without this package left that open, it is
made by the rule of the task.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from celery_lease.core.faults import Fault
from celery_lease.core.keys import HEADER, Exclusive, KeyFault, checked
from celery_lease.settings import LeaseConfigError
from celery_lease.task import keys, mapping
from celery_lease.task.task import LeasedTask
from celery_lease.worker import compat

if TYPE_CHECKING:
    from celery import Celery

    from celery_lease.core.policy import LeasePolicy


class KeyFinder:
    """Finds the keys of messages."""

    def __init__(self, app: Celery, transport: str = "") -> None:
        """*transport*: the broker's, if that cannot enforce keys."""
        self._app = app
        self._unable = transport

    def __call__(
        self, message: Any, task_id: str, policy: LeasePolicy, accept: frozenset[str] | None
    ) -> Exclusive | None:
        """Return the key that a message's task needs; None: it needs none.

        Raises:
            LeaseConfigError: There is none to be made of it: the task must not run.
        """
        if not policy.key and HEADER not in message.headers:
            return None
        facts = compat.facts_of(message)
        name = str(facts.get("task"))
        if name not in mapping.NAMES and not isinstance(self._app.tasks.get(name), LeasedTask):
            return None  # it has its lease by lease_tasks
        key = self._key(name, message, policy, accept)
        if not key:
            return None
        if self._unable:
            raise _refused(key, keys.unable(self._unable), name)
        expires = _seconds(facts.get("expires"))
        return Exclusive(
            key=key,
            limit=policy.key_limit,
            on_busy=policy.on_busy,
            # What waits for its time holds no key, and what is called off is not to wait for one.
            decides=not facts.get("eta") and not compat.is_refused(task_id, expires),
            expires=expires,
            retried=bool(facts.get("retries")),
        )

    def _key(
        self, name: str, message: Any, policy: LeasePolicy, accept: frozenset[str] | None
    ) -> str | None:
        headers = message.headers
        if HEADER in headers:
            try:
                return checked(headers[HEADER]) if headers[HEADER] != "" else ""
            except KeyFault as exc:
                raise _refused(headers[HEADER], str(exc), name) from exc
        task: Any = self._app.tasks.get(name)
        if name in mapping.NAMES or task is None or not policy.key:
            return None
        return keys.key_of_call(task, policy.key, *compat.arguments_of(message, accept))


def _seconds(expires: object) -> float | None:
    """Return an expiry time in seconds since 1970, as far as it is one."""
    if not isinstance(expires, str):
        return None
    try:
        return datetime.fromisoformat(expires).timestamp()
    except (ValueError, OverflowError, OSError):
        return None


def _refused(key: object, rule: str, task: str) -> LeaseConfigError:
    return LeaseConfigError((Fault(keys.OPTION, key, rule),), keys.call(task))
