"""Ends a ``celery`` command with one line at a wrong declaration, as at wrong settings.

Declarations are wrong in the project's modules, which Celery itself imports: it shows every error
in them with its traceback, of which only the last line is useful.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import TracebackType


def show_in_one_line() -> None:
    """Show only the message of an uncaught ``LeaseConfigError``, without a traceback.

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
