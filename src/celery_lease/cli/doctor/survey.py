"""What the workers that are up say of themselves, by Celery's remote control.

Workers with leases are told from plain ones by ``stats``, which every worker answers: one that
does not know a command writes an error to its log, and a look must not do that.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from celery_lease.cli.doctor.offset import Offset
from celery_lease.cli.workers import replies_to
from celery_lease.core.clock import SystemClock
from celery_lease.settings import SETTINGS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from celery import Celery

#: Kombu's ``visibility_timeout`` by transport, where the worker's configuration has none; seconds.
TIMEOUTS = {"redis": 3600.0, "sqs": 1800.0, "pgmq": 1800.0}

_VERSIONS = re.compile(r"\b(celery|kombu):(\S+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerAnswer:
    """One worker."""

    name: str
    leased: bool  #: it has the parts that keep leases
    versions: Mapping[str, str] = field(default_factory=dict)  #: by distribution
    visibility_timeout: float | None = None  #: seconds, where its transport has one
    queues: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)  #: its ``lease_*``, as it has them
    about: Mapping[str, Any] = field(default_factory=dict)  #: of ``lease_about``
    clock: Offset | None = None  #: from this host's


def survey(app: Celery, driver_type: str, timeout: float) -> list[WorkerAnswer]:
    """Return all workers that answer within *timeout* seconds, by name."""
    stats = _ask(app, "stats", timeout=timeout)
    names = sorted(stats)
    leased = [name for name in names if "lease" in stats[name]]
    rest = [name for name in names if name not in leased]
    told = _ask(app, "conf", names, timeout=timeout)
    confs = {name: _plain(each, app.conf.prefix or "") for name, each in told.items()}
    queues = _ask(app, "active_queues", names, timeout=timeout)
    reports = _ask(app, "report", rest, timeout=timeout)
    abouts, clocks = _about(app, leased, timeout)
    return [
        WorkerAnswer(
            name=name,
            leased=name in leased,
            versions=_versions(abouts.get(name), reports.get(name)),
            visibility_timeout=_visibility(confs.get(name), driver_type),
            queues=tuple(each["name"] for each in queues.get(name) or ()),
            settings=_settings(confs.get(name)),
            about=abouts.get(name, {}),
            clock=clocks.get(name),
        )
        for name in names
    ]


def _ask(
    app: Celery, command: str, names: Sequence[str] | None = None, *, timeout: float
) -> dict[str, Any]:
    """Return the replies to a command by worker; as soon as all of *names* have replied."""
    if names is not None and not names:
        return {}
    return replies_to(app, command, names or (), timeout=timeout)


def _about(
    app: Celery, names: Sequence[str], timeout: float
) -> tuple[dict[str, Any], dict[str, Offset]]:
    """Ask workers with leases, and read the clock around each answer."""
    if not names:
        return {}, {}
    wall, replies, clocks = SystemClock().wall, {}, {}
    # Once before: what connecting takes would be taken for an uncertainty.
    _ask(app, "ping", names, timeout=timeout)
    asked = wall().timestamp()

    def answered(body: dict[str, Any]) -> None:
        now = wall().timestamp()
        for name, reply in body.items():
            if "error" not in reply:
                replies[name] = reply
                clocks[name] = Offset.of(float(reply["clock"]), asked, now)

    app.control.broadcast(
        "lease_about",
        destination=names,
        reply=True,
        timeout=timeout,
        limit=len(names),
        callback=answered,
    )
    return replies, clocks


def _versions(about: Mapping[str, Any] | None, report: Any) -> dict[str, str]:
    if about:
        return dict(about["versions"])
    text = str((report or {}).get("ok", ""))
    return dict(_VERSIONS.findall(text))


def _visibility(conf: Mapping[str, Any] | None, driver_type: str) -> float | None:
    if conf is None or driver_type not in TIMEOUTS:
        return None
    options = conf.get("broker_transport_options") or {}
    return float(options.get("visibility_timeout", TIMEOUTS[driver_type]))


def _settings(conf: Mapping[str, Any] | None) -> dict[str, Any]:
    names = {setting.name for setting in SETTINGS}
    return {name: value for name, value in (conf or {}).items() if name in names}


def _plain(conf: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Return a configuration by plain names, without the app's namespace."""
    return {name.lower().removeprefix(prefix.lower()): value for name, value in conf.items()}
