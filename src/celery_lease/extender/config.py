"""How often an extender asks and for how long; wrong values do not become a config."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from celery_lease.core import policy
from celery_lease.settings import LeaseConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseExtenderConfig:
    """How often and for how long.

    Raises:
        LeaseConfigError: A value is no number of its kind, or they do not go together; names all
            that is wrong.
    """

    interval: float = 60.0  #: at least this many seconds between two extensions
    extension: float = 300  #: seconds that a beat keeps the message invisible
    enabled: bool = True  #: False: do nothing at all

    def __post_init__(self) -> None:
        if faults := _faults_of(self):
            raise LeaseConfigError(tuple(faults), "the extender")


def _faults_of(config: LeaseExtenderConfig) -> list[policy.Fault]:
    accepted = {
        "interval": policy.seconds(0),
        "extension": policy.ACCEPTED["extension"],
        "enabled": policy.FLAG,
    }
    checked = [
        accepted[field.name].fault(field.name, getattr(config, field.name), field.default)
        for field in fields(config)
    ]
    return [fault for fault in checked if fault] or list(_relation(config))


def _relation(config: LeaseExtenderConfig) -> Iterator[policy.Fault]:
    half = config.extension / 2
    if config.interval >= half:
        rule = f"must be less than half of extension ({config.extension:g})"
        hint = "a failed call must leave time for another"
        yield policy.Fault("interval", config.interval, rule, hint)
