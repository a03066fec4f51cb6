"""Reads ``app.conf``: the only place that does, once for each app.

Celery passes names that it does not know through, so a wrong value or a misspelt name is found
here or never. Which of several sources wins is Celery's decision: values are read through its own
view, only the names are taken from the keys.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from celery_lease.core.policy import PREFIX, Fault, number, policy_from, warnings_of

from .error import LeaseConfigError
from .layers import Settings, reaper_interval, value_faults
from .names import unknown
from .table import BY_NAME, SETTINGS, of_lease

if TYPE_CHECKING:
    from collections.abc import Mapping

DJANGO = "CELERY_LEASE_"  #: read with ``namespace="CELERY"`` only, and never meant for anybody else


def load(conf: Mapping[str, object]) -> Settings:
    """Return the lease settings of an app.

    Args:
        conf: ``app.conf``, or any mapping of setting names to values.

    Raises:
        LeaseConfigError: Values are wrong or names unknown; all of them are listed. Let it stop
            the worker.
    """
    # Going through the keys makes Celery read a configuration still pending, prefix included.
    written = frozenset(str(key) for key in conf)
    spelling = Spelling(getattr(conf, "prefix", None) or "", written)
    explicit = {name: conf[name] for name in BY_NAME if written & {name, spelling.of(name)}}
    faults = [spelling.applied(fault) for fault in value_faults(explicit)]
    faults += _strays(conf, spelling)
    if faults:
        raise LeaseConfigError(tuple(faults))
    return _settings(explicit, _unread(explicit, spelling))


def _settings(explicit: Mapping[str, object], warnings: list[str]) -> Settings:
    """Return the settings of faultless values."""
    policy = policy_from(of_lease(explicit))
    scaled = {"lease_reaper_interval": reaper_interval(policy.extension)}
    every = {setting.name: setting.default for setting in SETTINGS} | scaled | dict(explicit)
    port = every["lease_health_port"]
    publish = every["lease_publish_progress"]
    return Settings(
        enabled=bool(every["lease_enabled"]),
        policy=policy,
        explicit=explicit,
        reaper_interval=number(every["lease_reaper_interval"]),
        dead_letter_queue=str(every["lease_dead_letter_queue"]),
        health_host=str(every["lease_health_host"]),
        health_port=port if isinstance(port, int) else None,
        publish_progress=None if publish is None else number(publish),
        warnings=(*warnings_of(policy), *warnings),
    )


@dataclass(frozen=True, slots=True)
class Spelling:
    """How settings are written under the app's namespace, ``CELERY_`` with Django."""

    prefix: str
    written: frozenset[str]  #: all keys of the configuration

    def of(self, name: str) -> str:
        """Return the name as it stands in the configuration."""
        # As celery.utils.text.match_case has it (5.5 to 5.7).
        full = self.prefix + name
        return full.upper() if self.prefix.isupper() else full.lower()

    def seen(self, name: str) -> str:
        """Return the name as its author wrote it, or has to write it."""
        plain = name in self.written and self.of(name) not in self.written
        return name if plain else self.of(name)

    def applied(self, fault: Fault) -> Fault:
        """Return *fault* with all names as :meth:`seen`."""

        def spelt(text: str) -> str:
            return re.sub(rf"\b{PREFIX}[a-z_]+", lambda found: self.seen(found[0]), text)

        return replace(
            fault, name=spelt(fault.name), rule=spelt(fault.rule), hint=spelt(fault.hint)
        )

    @property
    def unread(self) -> list[str]:
        """Return the keys that Celery does not look at when asked for a lease setting."""
        return sorted(self.written - {*BY_NAME, *map(self.of, BY_NAME)})

    def claims(self, key: str) -> bool:
        """Tell whether *key* can only be meant as a lease setting of this app."""
        if key.startswith(PREFIX):
            return True
        if self.prefix:
            return key.lower().startswith(self.prefix.lower() + PREFIX)
        return key.startswith(DJANGO)


def _strays(conf: Mapping[str, object], spelling: Spelling) -> list[Fault]:
    """Return the faults of keys that are meant as lease settings and are none."""
    claimed = filter(spelling.claims, spelling.unread)
    faults = [_stray(key, conf[key], spelling) for key in claimed]
    return [fault for fault in faults if fault]


def _stray(key: str, value: object, spelling: Spelling) -> Fault | None:
    if inspect.ismodule(value) or inspect.isroutine(value) or inspect.isclass(value):
        return None  # a configuration module also holds what it imports or defines for itself
    if key.startswith(DJANGO) and not spelling.prefix:
        return _without_namespace(key, value)
    known = BY_NAME if key.startswith(PREFIX) else map(spelling.of, BY_NAME)
    return unknown(key, value, known)


def _without_namespace(key: str, value: object) -> Fault:
    name = PREFIX + key.removeprefix(DJANGO).lower()
    return Fault(
        key,
        value,
        "is not read, because the app's configuration has no namespace",
        f"write {name}, or call config_from_object(..., namespace='CELERY')",
    )


def _unread(explicit: Mapping[str, object], spelling: Spelling) -> list[str]:
    """Return a warning for each setting's name in a case that Celery does not read.

    No fault: ``LEASE_EXTENSION`` may be a constant of the module, or of somebody else's Django app.
    """
    return [
        f"{key} is not read; if it is meant for celery-lease, write {spelling.of(key.lower())}"
        for key in spelling.unread
        if key.lower() in BY_NAME and key.lower() not in explicit
    ]
