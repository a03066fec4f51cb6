"""Runs several ``celery worker`` processes under one parent, as in one container.

``celery -A proj lease group`` checks the app's settings and then *becomes* the parent
(:mod:`celery_lease.group.__main__`), by ``exec``: the parent is the process that an orchestrator
signals and waits for, it may be process 1, and it imports nothing of the app.

The parent starts all workers, passes signals on, reaps orphans, and exits with the worst exit code
of its workers. It restarts no process: when one worker ends, asked or not, the others are stopped
as well, because only then an orchestrator notices. :mod:`celery_lease.group.plan` decides what it
does on which event.
"""

from __future__ import annotations

from .plan import LAST_WORDS, MARGIN, NAME_VARIABLE, Member, longest_stop

__all__ = ["LAST_WORDS", "MARGIN", "NAME_VARIABLE", "Member", "longest_stop"]
