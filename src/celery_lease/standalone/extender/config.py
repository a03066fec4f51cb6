"""The configuration of an extender; a config with wrong values cannot be created."""

from __future__ import annotations

import logging
from dataclasses import dataclass, fields

from celery_lease.core.faults import FLAG, Fault, seconds
from celery_lease.settings import LeaseConfigError
from celery_lease.settings.table import BY_NAME

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LeaseExtenderConfig:
    """Interval and length of extensions. An interval above a third of the extension logs a warning.

    Raises:
        LeaseConfigError: A value is not of its kind, or the values contradict each other; all
            faults are named.
    """

    interval: float = 60.0  #: the least seconds between two extensions; 0: every beat extends
    extension: float = 300  #: seconds for which a beat keeps the message invisible
    enabled: bool = True  #: False: do nothing

    def __post_init__(self) -> None:
        if faults := _faults_of(self):
            raise LeaseConfigError(tuple(faults), "the extender")
        if self.interval > self.extension / 3:
            logger.warning(
                "interval = %g is above a third of extension (%g): if an extension fails, less "
                "than a third of the lease may be left to repeat it; set interval to %g",
                self.interval,
                self.extension,
                self.extension / 5,
            )


def _faults_of(config: LeaseExtenderConfig) -> list[Fault]:
    accepted = {
        "interval": seconds(0),
        "extension": BY_NAME["lease_extension"].accepted,
        "enabled": FLAG,
    }
    checked = [
        accepted[field.name].fault(field.name, getattr(config, field.name), field.default)
        for field in fields(config)
    ]
    faults = [fault for fault in checked if fault]
    if not faults and config.interval >= config.extension / 2:
        rule = f"must be less than half of extension ({config.extension:g})"
        hint = "a failed call must leave time for another"
        faults.append(Fault("interval", config.interval, rule, hint))
    return faults
