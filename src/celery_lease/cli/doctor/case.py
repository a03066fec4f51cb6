"""What is known of an app before its checks begin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from celery_lease import settings
from celery_lease.cli.workers import WITHOUT_REMOTE_CONTROL
from celery_lease.task import LeasedTask, lease_options

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from celery import Celery

    from celery_lease.cli.doctor.offset import Offset
    from celery_lease.cli.doctor.survey import WorkerAnswer
    from celery_lease.core.policy import LeasePolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """An app, its policies, and who answered."""

    app: Celery
    loaded: settings.Settings | None  #: None: they are wrong
    policies: Mapping[str, LeasePolicy]  #: of the leased tasks that this process knows, by name
    driver_type: str = ""  #: kombu's word for the broker's kind
    channel: Any = None  #: None: the broker cannot be reached
    workers: Sequence[WorkerAnswer] = ()
    broker_clock: Offset | None = None

    @property
    def can_ask(self) -> bool:
        """Whether workers can be asked."""
        wanted = bool(self.app.conf.worker_enable_remote_control)
        return wanted and self.driver_type not in WITHOUT_REMOTE_CONTROL

    @property
    def queues(self) -> list[str]:
        """The queues that this app or a worker that answered consumes from."""
        own = self.app.amqp.queues.consume_from or {}
        theirs = {name for worker in self.workers for name in worker.queues}
        return sorted({*map(str, own), *theirs})

    @property
    def leases(self) -> list[LeasePolicy]:
        """The policies of the leased tasks, or the app's where none is known."""
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


def load_settings(app: Celery) -> settings.Settings | settings.LeaseConfigError:
    """Return an app's settings, or what is wrong with them."""
    try:
        return settings.load(app.conf)
    except settings.LeaseConfigError as exc:
        return exc


def task_policies(
    app: Celery, loaded: settings.Settings
) -> tuple[dict[str, LeasePolicy], list[settings.LeaseConfigError]]:
    """Return the policies of an app's leased tasks that are on, and the errors of the others."""
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


def leased_tasks(app: Celery) -> dict[str, LeasedTask]:
    """Return the leased tasks that an app has in this process, by name."""
    tasks: dict[str, object] = dict(app.tasks)
    return {name: task for name, task in tasks.items() if isinstance(task, LeasedTask)}
