"""``celery -A proj lease ...`` in the test's own process."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from click.testing import CliRunner

from celery_lease.cli import lease

if TYPE_CHECKING:
    from celery import Celery


class Shell:
    """Runs ``celery -A proj lease`` in the test's process, with an app of the test's own."""

    def __init__(self, app: Celery) -> None:
        self.app = app

    def fails(self, *args: str) -> str:
        """Run a command that has to fail and return what it said."""
        result = self.result(*args)
        assert result.exit_code, result.output
        return str(result.output)

    def __call__(self, *args: str, **options: Any) -> str:
        result = self._run(args, **options)
        assert result.exit_code == 0, result.output
        return str(result.output)

    def result(self, *args: str, **options: Any) -> Any:
        """Run a command and return all of what came of it; no error but click's is expected."""
        result = self._run(args, **options)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.output
        return result

    def _run(self, args: tuple[str, ...], **options: Any) -> Any:
        return CliRunner().invoke(lease, args, obj=SimpleNamespace(app=self.app), **options)
