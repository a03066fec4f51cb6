"""Decides whether a worker takes messages and starts tasks: open, draining, or stopping.

::

    open ◄──► draining      by remote control
      └──────────┴─► stopping    by a signal, or because the worker cannot go on; for good

Invariant: a worker that stops stays so. The two flags are independent, and each is written in one
step, so that a signal that interrupts the end of a drain is not undone by it. Any thread and any
signal handler may call everything here: no lock, no I/O.
"""

from __future__ import annotations


class Intake:
    """One worker's; it outlives the worker's connections, and so does a drain."""

    def __init__(self) -> None:
        self.draining = False  #: an operator has asked for a drain that has not ended
        self.stopping = False  #: the worker was asked to stop, or stops by itself

    @property
    def is_open(self) -> bool:
        """Whether messages are taken and tasks are started."""
        return not (self.stopping or self.draining)

    def drain(self) -> None:
        """Take nothing more until :meth:`resume`."""
        self.draining = True

    def resume(self) -> None:
        """End a drain; a worker that stops does not open again."""
        self.draining = False

    def stop(self) -> None:
        """Take nothing more, for good."""
        self.stopping = True
