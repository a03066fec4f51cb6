"""The one list of settings: what each is called, takes, defaults to, means, and where it is set.

Defaults and accepted values of what belongs to a single lease are those of
:mod:`celery_lease.core.policy`; everything else about a setting is said here and nowhere else.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING

from celery_lease.core import policy
from celery_lease.core.policy import FLAG, PREFIX, Accepted

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One ``lease_*`` name. All of them can be set for the app."""

    name: str
    default: object
    accepted: Accepted
    doc: str  #: one line, Markdown
    task: bool = False  #: also an option of a task
    call: bool = False  #: also a keyword of ``apply_async``


def _of_lease(field: str, doc: str, *, call: bool = False) -> Setting:
    """Return the setting behind a field of the policy; all of these are task options."""
    return Setting(
        name=PREFIX + field,
        default=policy.DEFAULTS[field],
        accepted=policy.ACCEPTED[field],
        doc=doc,
        task=True,
        call=call,
    )


def _is_queue_name(value: object) -> bool:
    # "{queue}" alone would send a dead message back to the queue that it died in.
    if not isinstance(value, str) or value == "{queue}" or value != value.strip():
        return False
    return bool(value) and not set(value.replace("{queue}", "")) & set("{}")


def _is_host(value: object) -> bool:
    if not isinstance(value, str):
        return False
    try:
        ip_address(value)
    except ValueError:
        return re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9])?", value) is not None
    return True


REAPER_INTERVAL = 10.0  #: seconds between two sweeps, with the default extension

SETTINGS: tuple[Setting, ...] = (
    Setting(
        name="lease_enabled",
        default=True,
        accepted=FLAG,
        doc="`False`: tasks run as plain late-ack tasks",
        task=True,
        call=True,
    ),
    _of_lease("extension", "seconds that a beat keeps the message invisible", call=True),
    _of_lease(
        "interval",
        "at least this many seconds between two extensions of one message; less than "
        "`lease_extension` / 2 (above a third: a warning); left alone, at most "
        "`lease_extension` / 5",
        call=True,
    ),
    _of_lease(
        "mode",
        '`"heartbeat"`: the task proves its progress by beats; `"daemon"`: the living process is '
        'proof enough; `"observe"`: extend like `"daemon"`, enforce nothing, and report what '
        '`"heartbeat"` would have done',
        call=True,
    ),
    _of_lease(
        "on_lost",
        '`"abort"`: the next beat raises `LeaseLost`; `"continue"`: only a log line. Ack and '
        "result are fenced either way",
    ),
    _of_lease(
        "max_duration",
        "seconds after which the task is aborted, beats or not",
        call=True,
    ),
    _of_lease(
        "watchdog_threshold",
        "seconds without a beat after which the task's process is ended and its message "
        "released; `None`: at the lease's expiry",
    ),
    _of_lease(
        "shutdown_timeout",
        "seconds that a stopping worker waits for tasks in flight; at most `lease_extension`, "
        "which it also follows when left alone",
    ),
    _of_lease(
        "interruptible",
        "at shutdown the next beat raises `ShutdownRequested`; the message is released and a "
        "checkpoint resumes it elsewhere",
    ),
    _of_lease(
        "hold_reserved",
        "reserved messages keep their lease while the worker's main loop is alive",
    ),
    Setting(
        name="lease_reaper_interval",
        default=REAPER_INTERVAL,
        accepted=policy.seconds(),
        doc="seconds between two sweeps for expired leases; less than `lease_extension`; left "
        "alone, at most `lease_extension` / 3",
    ),
    _of_lease(
        "max_deliveries",
        "deliveries that may end by loss (crash, expiry) before the message is dead-lettered; "
        "orderly hand-backs do not count",
    ),
    Setting(
        name="lease_dead_letter_queue",
        default="{queue}.dead",
        accepted=Accepted(
            "a queue name other than the message's own queue, with {queue} as the only placeholder",
            _is_queue_name,
            unquoted=False,
        ),
        doc="the queue that takes dead letters; `{queue}` stands for the queue they come from",
    ),
    Setting(
        name="lease_publish_progress",
        default=None,
        accepted=policy.or_none(policy.seconds(0.1)),
        doc="seconds, at least, between two publications of a task's progress as state `PROGRESS` "
        "of its result, for `AsyncResult.info`; `None`: none",
    ),
    Setting(
        name="lease_health_host",
        default="127.0.0.1",
        accepted=Accepted(
            "a host name or an IP address, without scheme and port", _is_host, unquoted=False
        ),
        doc="address that the health server listens on; `0.0.0.0` for all",
    ),
    Setting(
        name="lease_health_port",
        default=None,
        accepted=policy.or_none(policy.whole(1, 65535)),
        doc="port of `/health/live`, `/health/ready` and `/metrics`; `None`: no server",
    ),
)

BY_NAME: Mapping[str, Setting] = {setting.name: setting for setting in SETTINGS}

OF_LEASE = frozenset(PREFIX + field for field in policy.DEFAULTS)  #: names behind a LeasePolicy


def of_lease(values: Mapping[str, object]) -> dict[str, object]:
    """Return the part of *values* that makes up a policy, by the policy's field names."""
    return {name.removeprefix(PREFIX): value for name, value in values.items() if name in OF_LEASE}


def reference() -> str:
    """Return all settings as a Markdown table."""
    rows = [
        "| setting | default | takes | also set by | meaning |",
        "| --- | --- | --- | --- | --- |",
    ]
    return "\n".join([*rows, *map(_row, SETTINGS)]) + "\n"


def _row(setting: Setting) -> str:
    also = ", ".join(["task option"] * setting.task + ["`apply_async`"] * setting.call)
    # An enum's member prints as the word that goes into the configuration.
    default = str(setting.default) if isinstance(setting.default, str) else setting.default
    number = isinstance(default, float)
    text = f"{default:g}" if number else repr(default)
    takes = setting.accepted.rule
    return f"| `{setting.name}` | `{text}` | {takes} | {also or '-'} | {setting.doc} |"
