"""What a loop must be able to do to run in a group."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
class Runnable(Protocol):
    """A loop that blocks while it works and ends when it is asked to."""

    def run(self) -> object:
        """Work until :meth:`shutdown` is called; return at once if it was called before."""
        ...

    def shutdown(self, timeout: float) -> bool:
        """Ask :meth:`run` to return, from another thread, and wait for that.

        Args:
            timeout: Seconds to wait; passed by name.

        Returns:
            Whether it has returned, or never ran.
        """
        ...

    @property
    def running(self) -> bool:
        """Whether :meth:`run` is at work."""
        ...
