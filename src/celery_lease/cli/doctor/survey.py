"""Asks the running workers for their facts, by Celery's remote control.

``stats``, which every worker answers, shows which workers have leases. A worker writes an error to
its log for a command that it does not know, so plain workers get only Celery's own commands.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from celery_lease.cli.broker import reached
from celery_lease.core.clock import SystemClock
from celery_lease.core.offset import Offset
from celery_lease.settings import SETTINGS
from celery_lease.view.asking import leave_little, replies_to

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from celery import Celery

    from celery_lease.core.driver import Driver
    from celery_lease.view.asking import Replies

    Ask = Callable[..., Replies]  # replies_to, for one app and one connection

_VERSIONS = re.compile(r"\b(celery|kombu):(\S+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerAnswer:
    """The facts of one worker."""

    name: str
    leased: bool  #: it has the parts for leases
    versions: Mapping[str, str] = field(default_factory=dict)  #: by distribution
    visibility_timeout: float | None = None  #: seconds, where its transport has one
    queues: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)  #: its ``lease_*`` settings
    about: Mapping[str, Any] = field(default_factory=dict)  #: its reply to ``lease_about``
    running: Mapping[str, float] = field(default_factory=dict)  #: tasks, and seconds so far
    clock: Offset | None = None  #: the difference to this host's
    namesakes: int = 0  #: the number of other workers with the same node name


def survey(app: Celery, driver: type[Driver], timeout: float) -> list[WorkerAnswer]:
    """Return all workers that answer within *timeout* seconds, by name.

    Raises:
        click.ClickException: The broker is away, or does not answer for 5 s.
    """
    with reached(app.connection_for_write()) as connection:
        leave_little(connection)
        ask = partial(replies_to, app, timeout=timeout, connection=connection)
        return _survey(ask, driver, app.conf.prefix or "")


def _survey(ask: Ask, driver: type[Driver], prefix: str) -> list[WorkerAnswer]:
    answers = ask("stats")
    counts = Counter(name for name, _ in answers)
    stats = dict(answers)
    names = sorted(stats)
    leased = [name for name in names if "lease" in stats[name]]
    rest = [name for name in names if name not in leased]
    replies = _replies(ask, "conf", names)
    confs = {name: _plain(each, prefix) for name, each in replies.items()}
    queues = _replies(ask, "active_queues", names)
    reports = _replies(ask, "report", rest)
    active = _replies(ask, "active", names)
    abouts, clocks = _about(ask, leased)
    return [
        WorkerAnswer(
            name=name,
            leased=name in leased,
            versions=_versions(abouts.get(name), reports.get(name)),
            visibility_timeout=_visibility(confs.get(name), driver.visibility_timeout),
            queues=tuple(each["name"] for each in queues.get(name) or ()),
            settings=_settings(confs.get(name)),
            about=abouts.get(name, {}),
            running=_running(active.get(name)),
            clock=clocks.get(name),
            namesakes=counts[name] - 1,
        )
        for name in names
    ]


def _replies(ask: Ask, command: str, names: Sequence[str]) -> dict[str, Any]:
    """Return the replies to a command by worker, as soon as all of *names* have replied."""
    return dict(ask(command, names)) if names else {}


def _about(ask: Ask, names: Sequence[str]) -> tuple[dict[str, Any], dict[str, Offset]]:
    """Ask workers with leases, and read the clock around each answer."""
    if not names:
        return {}, {}
    wall, replies, clocks = SystemClock().wall, {}, {}
    # A first call, so that the time for connecting does not count as uncertainty.
    _replies(ask, "ping", names)
    asked = wall().timestamp()

    def answered(body: dict[str, Any]) -> None:
        now = wall().timestamp()
        for name, reply in body.items():
            if "error" not in reply:
                replies[name] = reply
                clocks[name] = Offset.of(float(reply["clock"]), asked, now)

    ask("lease_about", names, callback=answered)
    return replies, clocks


def _running(active: Any) -> dict[str, float]:
    """Return the tasks that a worker runs, and for how many seconds each, by this host's clock."""
    now, found = SystemClock().wall().timestamp(), dict[str, float]()
    for each in active or ():
        if each.get("time_start"):
            seconds = max(0.0, now - each["time_start"])
            found[each["type"]] = max(seconds, found.get(each["type"], 0.0))
    return found


def _versions(about: Mapping[str, Any] | None, report: Any) -> dict[str, str]:
    if about:
        return dict(about["versions"])
    text = str((report or {}).get("ok", ""))
    return dict(_VERSIONS.findall(text))


def _visibility(conf: Mapping[str, Any] | None, default: float | None) -> float | None:
    if conf is None or default is None:
        return None
    options = conf.get("broker_transport_options") or {}
    return float(options.get("visibility_timeout", default))


def _settings(conf: Mapping[str, Any] | None) -> dict[str, Any]:
    names = {setting.name for setting in SETTINGS}
    return {name: value for name, value in (conf or {}).items() if name in names}


def _plain(conf: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Return a configuration under plain names, without the app's namespace."""
    return {name.lower().removeprefix(prefix.lower()): value for name, value in conf.items()}
