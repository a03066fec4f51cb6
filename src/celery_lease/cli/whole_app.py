"""Puts the worker parts into an app that sets ``lease_tasks`` and has no leased task.

Nothing imports this package then but the ``celery`` command, for its plug-ins. A worker sends
``worker_init`` when the app's modules are imported and before it reads the app's bootsteps
(``celery/worker/worker.py``, 5.5.3 and 5.7.0).
"""

from __future__ import annotations

from typing import Any

from celery.signals import worker_init


def install_at_start() -> None:
    """Do so in each worker that this process starts."""
    worker_init.connect(_install, weak=False, dispatch_uid="celery_lease.lease_tasks")


def _install(sender: Any, **_: Any) -> None:
    # Every celery command imports this module.
    from celery_lease.installation import install_if_set  # noqa: PLC0415

    install_if_set(sender.app)
