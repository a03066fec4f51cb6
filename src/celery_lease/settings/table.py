"""The table of settings: name, accepted values, default, documentation, and places."""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING

from celery_lease.core.faults import FLAG, Accepted, one_of, or_none, seconds, text, whole
from celery_lease.core.keys import LONGEST as LONGEST_KEY, KeyFault, OnBusy, names_in
from celery_lease.core.policy import LeasePolicy, Mode, OnLost

from .selection import DECORATED, SELECTION

if TYPE_CHECKING:
    from collections.abc import Mapping

PREFIX = "lease_"
#: The setting that says which undecorated tasks get leases.
TASKS = "lease_tasks"


@dataclass(frozen=True, slots=True)
class Setting:
    """One ``lease_*`` name."""

    name: str
    default: object
    accepted: Accepted
    doc: str  #: one line, Markdown
    task: bool = False  #: also an option of a task
    call: bool = False  #: also a keyword of ``apply_async``
    follows: float = 0  #: its default is at most this part of ``lease_extension``: 5, a fifth
    app: bool = True  #: can be set for the app

    @property
    def field(self) -> str:
        """The attribute of the policy, or else of the app's settings, for its value."""
        return self.name.removeprefix(PREFIX)

    def value(self, explicit: Mapping[str, object], extension: float) -> object:
        """Return the value in use; explicit values must have no faults."""
        if self.name in explicit:
            return self.accepted.convert(explicit[self.name])
        if self.follows and isinstance(self.default, float):
            return min(self.default, extension / self.follows)
        default = self.default
        return self.accepted.convert(default) if isinstance(default, str) else default


def _of_lease(
    name: str,
    accepted: Accepted,
    doc: str,
    *,
    call: bool = False,
    app: bool = True,
    follows: float = 0,
) -> Setting:
    """Return the setting for a field of the policy; all of these are task options."""
    default = getattr(LeasePolicy(), name.removeprefix(PREFIX))
    return Setting(name, default, accepted, doc, task=True, call=call, app=app, follows=follows)


def _is_key_rule(value: object) -> bool:
    if not isinstance(value, str):
        return value is None or callable(value)
    try:
        names_in(value)
    except KeyFault:
        return False
    return len(value) <= LONGEST_KEY and value.isprintable()


def _is_queue_name(value: str) -> bool:
    # "{queue}" alone would send a dead letter back to the queue that it came from.
    if value == "{queue}" or value != value.strip():
        return False
    return bool(value) and not set(value.replace("{queue}", "")) & set("{}")


def _is_host(value: str) -> bool:
    try:
        ip_address(value)
    except ValueError:
        return re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9])?", value) is not None
    return True


SETTINGS: tuple[Setting, ...] = (
    Setting(
        "lease_enabled",
        default=True,
        accepted=FLAG,
        doc="`False`: tasks run as plain late-ack tasks",
        task=True,
        call=True,
    ),
    _of_lease(
        "lease_extension",
        seconds(0.01),  # a shorter lease has no time for a round trip to its broker
        "seconds for which a beat keeps the message",
        call=True,
    ),
    _of_lease(
        "lease_interval",
        seconds(),
        "least number of seconds between two extensions of one message; must be less than "
        "`lease_extension` / 2 (above a third: a warning); if not set, at most "
        "`lease_extension` / 5",
        call=True,
        follows=5,
    ),
    _of_lease(
        "lease_mode",
        one_of(Mode),
        '`"heartbeat"`: the lease is extended while the task beats; `"daemon"`: while its process '
        'lives; `"observe"`: like `"daemon"`, but nothing except `lease_max_duration` is enforced, '
        'and the log says what `"heartbeat"` would have done',
        call=True,
    ),
    _of_lease(
        "lease_on_lost",
        one_of(OnLost),
        '`"abort"`: the next beat raises `LeaseLost`; `"continue"`: the task runs on, and a log '
        "line says so. Its acknowledgement and result are fenced either way",
    ),
    _of_lease(
        "lease_max_duration",
        seconds(),
        "seconds after which the task is aborted, even if it beats",
        call=True,
    ),
    _of_lease(
        "lease_watchdog_threshold",
        or_none(seconds()),
        "seconds without a beat after which the task's process is ended and its message "
        "returned to its queue; `None`: when the lease expires",
    ),
    _of_lease(
        "lease_shutdown_timeout",
        seconds(),
        "seconds for which a stopping worker waits for running tasks; at most `lease_extension`, "
        "also if it is not set",
        follows=1,
    ),
    _of_lease(
        "lease_interruptible",
        FLAG,
        "at shutdown the next beat raises `ShutdownRequested`; the message is requeued, and the "
        "task resumes elsewhere from its checkpoint",
    ),
    _of_lease(
        "lease_hold_reserved",
        FLAG,
        "reserved messages keep their lease while the worker's main loop runs",
    ),
    Setting(
        "lease_reaper_interval",
        default=10.0,
        accepted=seconds(),
        doc="seconds between two sweeps for expired leases; must be less than `lease_extension`; "
        "if not set, at most `lease_extension` / 3",
        follows=3,
    ),
    _of_lease(
        "lease_max_deliveries",
        whole(1, 1_000_000),  # a larger number is a mistake
        "losses (crash, expiry) after which the message is dead-lettered; orderly returns, and "
        "deliveries in which the task was not started, do not count",
    ),
    _of_lease(
        "lease_key",
        Accepted(
            "None, a callable, or a template over the task's parameters such as "
            "'import:{customer_id}'",
            _is_key_rule,
            lambda value: value,
            unquoted=False,
        ),
        "the task's [exclusive key](keys.md): at most `lease_key_limit` started tasks hold it at "
        "once; a template over the task's arguments, or a callable of them; empty: none",
        call=True,
        app=False,
    ),
    _of_lease(
        "lease_key_limit",
        whole(1, 1000),  # a script at the broker looks at all holders
        "how many started tasks may hold the key at once; if messages have different limits, that "
        "of the message that needs the key counts",
        call=True,
        app=False,
    ),
    _of_lease(
        "lease_on_busy",
        one_of(OnBusy),
        'what becomes of a message whose key is busy; `"wait"`: it is parked until the key is '
        'free; `"drop"`: its task is revoked; `"replace"`: it is parked in place of the one that '
        "is, which is revoked",
        call=True,
        app=False,
    ),
    Setting(
        "lease_dead_letter_queue",
        default="{queue}.dead",
        accepted=text(
            "a queue name other than the message's own queue, with {queue} as the only placeholder",
            _is_queue_name,
        ),
        doc="the queue for dead letters; `{queue}` stands for the queue that they come from",
    ),
    Setting(
        TASKS,
        default=DECORATED,
        accepted=SELECTION,
        doc='`"all"`, or name patterns (`["reports.*", "!reports.tiny"]`): undecorated tasks that '
        "get leases too, kept by their living process; early-acknowledged ones hold theirs while "
        "they wait",
    ),
    Setting(
        "lease_publish_progress",
        default=None,
        accepted=or_none(seconds(0.1)),
        doc="least number of seconds between two publications of a task's progress as state "
        "`PROGRESS` of its result, for `AsyncResult.info`; `None`: progress is not published",
    ),
    Setting(
        "lease_health_host",
        default="127.0.0.1",
        accepted=text("a host name or an IP address, without scheme and port", _is_host),
        doc="address on which the health server listens; `0.0.0.0`: all addresses",
    ),
    Setting(
        "lease_health_port",
        default=None,
        accepted=or_none(whole(1, 65535)),
        doc="port of `/health/live`, `/health/ready` and `/metrics`; `None`: no server",
    ),
)

BY_NAME: Mapping[str, Setting] = {setting.name: setting for setting in SETTINGS}
