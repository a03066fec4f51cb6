"""What the plug-in does to every ``celery`` command, as all of them import this package."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from celery.signals import worker_init

if TYPE_CHECKING:
    from types import TracebackType


def install_at_start() -> None:
    """Put the worker parts into an app that sets ``lease_tasks`` and has no leased task.

    Nothing else imports this package then. A worker sends ``worker_init`` when the app's modules
    are imported and before it reads the app's bootsteps (``celery/worker/worker.py``, 5.5.3 and
    5.7.0).
    """
    worker_init.connect(_install, weak=False, dispatch_uid="celery_lease.lease_tasks")


def _install(sender: Any, **_: Any) -> None:
    from celery_lease.installation import install_if_set  # noqa: PLC0415  (see above)

    install_if_set(sender.app)


def show_in_one_line() -> None:
    """Show only the message of an uncaught ``LeaseConfigError``, without a traceback.

    Declarations are wrong in the project's modules, which Celery itself imports: it shows every
    error in them with its traceback, of which only the last line is useful.

    ``celery.bin.celery`` (5.5 to 5.7) loads the app of ``-A`` by ``find_app`` and shows its errors;
    all later errors end the process.
    """
    before = sys.excepthook

    def show(kind: type[BaseException], exc: BaseException, at: TracebackType | None) -> None:
        if _is_refusal(exc):
            print(f"Error: {exc}", file=sys.stderr)  # noqa: T201  (as click shows its own)
        else:
            before(kind, exc, at)

    sys.excepthook = show
    command: Any = sys.modules.get("celery.bin.celery")
    find_app = getattr(command, "find_app", None)
    if find_app is None:
        return

    def find(*args: Any, **options: Any) -> Any:
        try:
            return find_app(*args, **options)
        except Exception as exc:
            if _is_refusal(exc):
                raise SystemExit(f"Error: {exc}") from None
            raise

    command.find_app = find


def _is_refusal(exc: BaseException) -> bool:
    """Whether an error is a ``LeaseConfigError``; a raised one has loaded its module."""
    known = sys.modules.get("celery_lease.settings.error")
    return known is not None and isinstance(exc, known.LeaseConfigError)
