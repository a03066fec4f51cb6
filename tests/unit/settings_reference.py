"""The table of settings in the documentation, as it has to be."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_lease.settings import SETTINGS

if TYPE_CHECKING:
    from celery_lease.settings import Setting


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
    shown = f"{default:g}" if isinstance(default, float) else repr(default)
    takes = setting.accepted.rule
    return f"| `{setting.name}` | `{shown}` | {takes} | {also or '-'} | {setting.doc} |"
