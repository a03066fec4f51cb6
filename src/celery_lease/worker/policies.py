"""Finds the policy of a message's lease: options of its call, then its task, then the app."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from celery_lease import settings
from celery_lease.core.faults import Fault
from celery_lease.settings import LeaseConfigError, Resolved
from celery_lease.task import keys, mapping
from celery_lease.task.task import LeasedTask, lease_options
from celery_lease.worker import covered

if TYPE_CHECKING:
    from collections.abc import Mapping

    from celery import Celery

    from celery_lease.core.policy import LeasePolicy

logger = logging.getLogger(__name__)

#: Options that no undecorated task has: one that is acknowledged early would hold no key.
KEYED = ("lease_key", "lease_key_limit", "lease_on_busy")


def _no_keys(name: str, rule: object, transport: str) -> LeaseConfigError:
    hint = "use one of these, or remove lease_key"
    fault = Fault(keys.OPTION, rule, keys.unable(transport), hint)
    return LeaseConfigError((fault,), f"task {name!r}")


class Policies:
    """Finds policies by task name. Called by the consuming thread only."""

    def __init__(self, app: Celery, loaded: settings.Settings) -> None:
        self._app = app
        self._loaded = loaded
        self._known: dict[str, Resolved | None] = {}
        self._usual: dict[str, LeasePolicy | None] = {}  # of calls without options
        self.uncovered: dict[str, str] = {}  #: tasks that cannot get a lease, and why

    def __call__(self, name: str, options: Mapping[str, object]) -> LeasePolicy | None:
        """Return the policy for a message, or None if it needs no lease.

        The caller has checked a call's options; wrong ones of a foreign client are logged and
        ignored, so that its message is not lost over them.
        """
        if not options and name in self._usual:
            return self._usual[name]
        policy = self._of_call(name, options)
        if not options:
            self._usual[name] = policy
        return policy

    def _of_call(self, name: str, options: Mapping[str, object]) -> LeasePolicy | None:
        base = self._task(name)
        if base is None:
            return None
        try:
            resolved = settings.call_lease(base, options, name)
        except LeaseConfigError as exc:
            logger.error("lease options of a call ignored: %s", exc)  # noqa: TRY400
            resolved, options = base, {}
        if not resolved.enabled:
            return None
        return self._policy(name, resolved, options)

    def never_leases(self, name: str) -> bool:
        """Whether this is a task of the app without leases, however it is called.

        A mapping task's messages have the lease of the task that it calls.
        """
        known = name in self._app.tasks and name not in mapping.NAMES
        return known and self._task(name) is None

    def check(self, transport: str = "") -> None:
        """Resolve the policies and the request classes of all tasks with leases.

        Args:
            transport: The broker's, if that cannot enforce exclusive keys.

        Raises:
            LeaseConfigError: Options of some tasks are wrong; all of them are named.
        """
        errors = []
        for name, task in list(self._app.tasks.items()):
            try:
                resolved = self._task(name)
                if transport and resolved and resolved.policy.key:
                    errors.append(_no_keys(name, resolved.policy.key, transport))
                if isinstance(task, LeasedTask):
                    task.mix_request()
            except LeaseConfigError as exc:
                errors.append(exc)
        if errors:
            faults = tuple(fault for each in errors for fault in each.faults)
            raise LeaseConfigError(faults, ", ".join(each.origin for each in errors))

    def all(self) -> dict[str, LeasePolicy]:
        """Return the policies of enabled tasks with leases, by name, without celery-lease's own."""
        names = [name for name in list(self._app.tasks) if name not in mapping.NAMES]
        found = {name: self._task(name) for name in names}
        return {
            name: self._policy(name, each, {})
            for name, each in found.items()
            if each and each.enabled
        }

    @property
    def covered(self) -> list[str]:
        """The names of the undecorated tasks that get leases by ``lease_tasks``."""
        return [name for name in self.all() if not isinstance(self._app.tasks[name], LeasedTask)]

    def idle_patterns(self) -> list[str]:
        """Return what ``lease_tasks`` says that matches no undecorated task."""
        tasks: dict[str, object] = dict(self._app.tasks)
        plain = [name for name, task in tasks.items() if not isinstance(task, LeasedTask)]
        return self._loaded.tasks.idle(plain)

    def extensions(self) -> set[float]:
        """Return the ``lease_extension`` of each task with leases, in seconds."""
        return {policy.extension for policy in self.all().values()}

    def _task(self, name: str) -> Resolved | None:
        if name not in self._known:
            task: Any = self._app.tasks.get(name)
            self._known[name] = (
                settings.task_lease(self._loaded, lease_options(task), name)
                if isinstance(task, LeasedTask) or self._covers(name, task)
                else None
            )
        return self._known[name]

    def _covers(self, name: str, task: Any) -> bool:
        """Whether an undecorated task gets leases; its requests are of that kind from now on."""
        if task is None or not self._loaded.tasks.selects(name):
            return False
        options = lease_options(task)
        if options.get("lease_enabled", True) is False:
            return False
        if keyed := [each for each in KEYED if each in options]:
            rule = "is an option of leased tasks: what holds a key has to be one"
            faults = [
                Fault(each, options[each], rule, "decorate it with @leased_task") for each in keyed
            ]
            raise LeaseConfigError(tuple(faults), f"task {name!r}")
        reason = covered.cover(task)
        if reason:
            self.uncovered[name] = reason
        return not reason

    def _policy(self, name: str, resolved: Resolved, options: Mapping[str, object]) -> LeasePolicy:
        task = self._app.tasks[name]
        if isinstance(task, LeasedTask):
            return resolved.policy
        return settings.covered_policy(resolved, {**lease_options(task), **options})
