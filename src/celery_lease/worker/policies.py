"""Which policy a message's lease follows: its call's options over its task's over the app's."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from celery_lease import settings
from celery_lease.settings import LeaseConfigError
from celery_lease.task import LeasedTask, lease_options

if TYPE_CHECKING:
    from collections.abc import Mapping

    from celery import Celery

    from celery_lease.core.policy import LeasePolicy
    from celery_lease.settings import Resolved

logger = logging.getLogger(__name__)


class Policies:
    """Finds policies by task name. Called by the consuming thread only."""

    def __init__(self, app: Celery, loaded: settings.Settings) -> None:
        self._app = app
        self._loaded = loaded
        self._known: dict[str, Resolved | None] = {}

    def __call__(self, name: str, options: Mapping[str, object]) -> LeasePolicy | None:
        """Return the policy for a message, or None if it needs no lease.

        A call's options were checked by the caller; those of a foreign one that are wrong after
        all are logged and left out, so that its message is not lost over them.
        """
        base = self._task(name)
        if base is None:
            return None
        try:
            resolved = settings.call_lease(base, options, name)
        except LeaseConfigError as exc:
            logger.error("lease options of a call ignored: %s", exc)  # noqa: TRY400
            resolved = base
        return resolved.policy if resolved.enabled else None

    def check(self) -> None:
        """Resolve the policies of all leased tasks.

        Raises:
            LeaseConfigError: Options of some are wrong; all of them are named.
        """
        errors = []
        for name in self._app.tasks:
            try:
                self._task(name)
            except LeaseConfigError as exc:
                errors.append(exc)
        if errors:
            faults = tuple(fault for each in errors for fault in each.faults)
            raise LeaseConfigError(faults, ", ".join(each.origin for each in errors))

    def extensions(self) -> set[float]:
        """Return the ``lease_extension`` of each leased task, in seconds."""
        found = filter(None, map(self._task, list(self._app.tasks)))
        return {resolved.policy.extension for resolved in found if resolved.enabled}

    def _task(self, name: str) -> Resolved | None:
        if name not in self._known:
            task: object = self._app.tasks.get(name)
            self._known[name] = (
                settings.task_lease(self._loaded, lease_options(task), name)
                if isinstance(task, LeasedTask)
                else None
            )
        return self._known[name]
