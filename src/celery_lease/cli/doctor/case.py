"""The subject of the checks: an app, its policies, and the workers that answered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from celery_lease import brokers, settings
from celery_lease.task import mapping
from celery_lease.task.task import LeasedTask, lease_options
from celery_lease.worker import access, covered

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from celery import Celery

    from celery_lease.cli.doctor.survey import WorkerAnswer
    from celery_lease.core.driver import Driver
    from celery_lease.core.offset import Offset
    from celery_lease.core.policy import LeasePolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """An app, its policies, and the workers that answered."""

    app: Celery
    loaded: settings.Settings | None  #: None: they are wrong
    policies: Mapping[str, LeasePolicy]  #: of the leased tasks that this process knows, by name
    driver_type: str = ""  #: kombu's name for the broker's kind
    channel: Any = None  #: None: the broker cannot be reached
    workers: Sequence[WorkerAnswer] = ()
    unasked: bool = False  #: the question to the workers failed, which another finding reports
    broker_clock: Offset | None = None
    refused: int = 0  #: leased tasks whose options break a rule
    covered: frozenset[str] = frozenset()  #: undecorated tasks with leases by ``lease_tasks``

    @property
    def driver(self) -> type[Driver]:
        return brokers.driver_class(self.driver_type)

    @property
    def can_ask(self) -> bool:
        return bool(self.app.conf.worker_enable_remote_control) and not self.driver.unaskable

    @property
    def queues(self) -> list[str]:
        """The queues that this app or a worker that answered consumes from."""
        own = self.app.amqp.queues.consume_from or {}
        theirs = {name for worker in self.workers for name in worker.queues}
        return sorted({*map(str, own), *theirs})

    @property
    def leases(self) -> list[LeasePolicy]:
        """The policies of leased tasks, or the app's own policy if no task is known."""
        own = [self.loaded.policy] if self.loaded else []
        return list(self.policies.values()) or own

    @property
    def longest(self) -> float:
        """The longest that a lease may be held, in seconds; 0: unknown."""
        return max((policy.max_duration for policy in self.leases), default=0.0)

    @property
    def shortest_extension(self) -> float:
        """The shortest ``lease_extension``, in seconds; 0: unknown."""
        return min((policy.extension for policy in self.leases), default=0.0)

    @property
    def plain_tasks(self) -> dict[str, Any]:
        """The app's tasks without a lease, by name; without tasks whose lease options are wrong."""
        leases = self.loaded is None or self.loaded.enabled
        return {
            name: task
            for name, task in sorted(dict(self.app.tasks).items())
            if name not in self.policies
            and name not in self.covered
            and not name.startswith("celery.")
            and not (leases and isinstance(task, LeasedTask))
        }

    def lacking(self, *, by_hand: bool = False) -> list[tuple[str, str]]:
        """Return the missing permissions at broker and result backend, each with a remedy."""
        if self.loaded is None:  # the names of dead-letter queues are unknown
            return []
        return access.lacking(self.app, self.loaded, self.channel, by_hand=by_hand)


def task_policies(
    app: Celery, loaded: settings.Settings
) -> tuple[dict[str, LeasePolicy], list[settings.LeaseConfigError]]:
    """Return the policies of an app's enabled leased tasks, and the errors of the others."""
    found: dict[str, LeasePolicy] = {}
    errors = []
    for name, task in sorted(leased_tasks(app).items()):
        try:
            resolved = settings.task_lease(loaded, lease_options(task), name)
        except settings.LeaseConfigError as exc:
            errors.append(exc)
            continue
        if resolved.enabled:
            found[name] = resolved.policy
    return found, errors


def covered_tasks(app: Celery, loaded: settings.Settings) -> frozenset[str]:
    """Return the undecorated tasks of an app that get leases by ``lease_tasks``."""
    tasks: dict[str, Any] = dict(app.tasks)
    return frozenset(
        name
        for name, task in tasks.items()
        if loaded.enabled
        and loaded.tasks.selects(name)
        and not isinstance(task, LeasedTask)
        and not covered.obstacle(task)
    )


def leased_tasks(app: Celery) -> dict[str, LeasedTask]:
    """Return an app's leased tasks in this process, by name, without celery-lease's own."""
    tasks: dict[str, object] = {name: app.tasks[name] for name in set(app.tasks) - mapping.NAMES}
    return {name: task for name, task in tasks.items() if isinstance(task, LeasedTask)}
