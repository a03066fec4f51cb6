"""Reads ``app.conf``; no other module does.

Celery passes unknown names through, so a wrong value or a misspelt name is found here or never.
Celery decides which of several sources has precedence: values are read through its own view, and
only the names are taken from the keys.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from celery_lease.core.faults import Fault
from celery_lease.core.policy import warnings_of

from .error import LeaseConfigError
from .resolve import Settings, faults_of, not_of_app, unknown, values_of
from .selection import DECORATED
from .table import BY_NAME, PREFIX, TASKS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

DJANGO = "CELERY_LEASE_"  #: only read with ``namespace="CELERY"``; it has no other meaning


def load(conf: Mapping[str, object]) -> Settings:
    """Return the lease settings of an app.

    Args:
        conf: ``app.conf``, or any mapping of setting names to values.

    Raises:
        LeaseConfigError: Values are wrong or names unknown; all of them are listed. Let it stop
            the worker.
    """
    # Iterating over the keys makes Celery read a pending configuration, prefix included.
    written = frozenset(str(key) for key in conf)
    spelling = Spelling(getattr(conf, "prefix", None) or "", written)
    explicit = {name: conf[name] for name in BY_NAME if written & {name, spelling.of(name)}}
    own = {name: value for name, value in explicit.items() if not BY_NAME[name].app}
    faults = [spelling.applied(not_of_app(name, value)) for name, value in own.items()]
    explicit = {name: value for name, value in explicit.items() if name not in own}
    faults += [spelling.applied(fault) for fault in faults_of(explicit)]
    faults += _strays(conf, spelling)
    if faults:
        raise LeaseConfigError(tuple(faults))
    values = values_of(explicit)
    # No faults: LEASE_EXTENSION may be a constant of the module, or of another Django app.
    unread = (
        f"{key} is not read; if it is meant for celery-lease, write {spelling.of(key.lower())}"
        for key in spelling.unread
        if key.lower() in BY_NAME and key.lower() not in explicit
    )
    return Settings(**values, warnings=(*warnings_of(values["policy"]), *unread))


def means_tasks(conf: Mapping[str, object]) -> bool:
    """Whether an app's configuration sets ``lease_tasks``, or by mistake a name very like it."""
    written = frozenset(str(key) for key in conf)
    spelling = Spelling(getattr(conf, "prefix", None) or "", written)
    if written & {TASKS, spelling.of(TASKS)}:
        return conf[TASKS] != DECORATED
    meant = f"did you mean {spelling.of(TASKS)}?"
    return any(
        fault.hint == meant or fault.name == DJANGO + "TASKS" for fault in _strays(conf, spelling)
    )


@dataclass(frozen=True, slots=True)
class Spelling:
    """The names of settings under the app's namespace, ``CELERY_`` with Django."""

    prefix: str
    written: frozenset[str]  #: all keys of the configuration

    def of(self, name: str) -> str:
        """Return a setting's name as it stands in the configuration."""
        # As in celery.utils.text.match_case (5.5 to 5.7).
        full = self.prefix + name
        return full.upper() if self.prefix.isupper() else full.lower()

    def applied(self, fault: Fault) -> Fault:
        """Return *fault* with all names as they are in the configuration, or have to be."""

        def spelt(found: re.Match[str]) -> str:
            name = found[0]
            plain = name in self.written and self.of(name) not in self.written
            return name if plain else self.of(name)

        name = re.compile(rf"\b{PREFIX}[a-z_]+")
        return replace(
            fault,
            **{each: name.sub(spelt, getattr(fault, each)) for each in ("name", "rule", "hint")},
        )

    @property
    def unread(self) -> list[str]:
        """Return the keys that Celery does not read for a lease setting."""
        return sorted(self.written - {*BY_NAME, *map(self.of, BY_NAME)})

    def claims(self, key: str) -> bool:
        """Return whether *key* can only be meant as a lease setting of this app."""
        if key.startswith(PREFIX):
            return True
        if self.prefix:
            return key.lower().startswith(self.prefix.lower() + PREFIX)
        return key.startswith(DJANGO)


def _strays(conf: Mapping[str, object], spelling: Spelling) -> Iterator[Fault]:
    """Yield the faults of keys that look like lease settings and are none."""
    for key in filter(spelling.claims, spelling.unread):
        value = conf[key]
        if inspect.ismodule(value) or inspect.isroutine(value) or inspect.isclass(value):
            continue  # a configuration module also has its own imports and definitions
        if key.startswith(DJANGO) and not spelling.prefix:
            name = PREFIX + key.removeprefix(DJANGO).lower()
            rule = "is not read, because the app's configuration has no namespace"
            hint = f"write {name}, or call config_from_object(..., namespace='CELERY')"
            yield Fault(key, value, rule, hint)
        else:
            known = BY_NAME if key.startswith(PREFIX) else map(spelling.of, BY_NAME)
            yield unknown(key, value, known)
