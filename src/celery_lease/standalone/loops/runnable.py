"""The interface of a loop in a group."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@runtime_checkable
class Runnable(Protocol):
    """A loop that blocks while it works and ends when it is asked to.

    A group can watch a loop with an attribute ``heartbeat`` (:class:`~celery_lease.Heartbeat`) that
    the loop beats.
    """

    @property
    def run(self) -> Callable[..., object]:
        """Work until :meth:`shutdown` is called; return at once if it was called before.

        It is called with those of the keywords ``max_iterations``, ``visibility_timeout`` and
        ``wait_time_seconds`` that are among its parameters, see :meth:`LoopGroup.run`.
        """
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


def accepted(run: Callable[..., object], options: Mapping[str, object]) -> dict[str, object]:
    """Return the options that are parameters of a loop's ``run``.

    Not for ``**kwargs``: kombu's ``ConsumerMixin.run`` passes them to its own hooks.
    """
    named = inspect.signature(run).parameters
    return {name: value for name, value in options.items() if name in named}
