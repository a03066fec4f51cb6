"""Several ``celery worker`` processes under one parent, as in one container.

``celery -A proj lease group`` checks the app's settings and then *becomes* the parent
(:mod:`celery_lease.group.__main__`), by ``exec``: the parent is the process that an orchestrator
signals and waits for, it may be process 1, and it imports nothing of the app.

The parent starts all workers, passes signals on, reaps whatever is orphaned, and ends with the
worst exit code of its workers. It starts nothing again: when one worker ends, told or not, the
others are stopped as well, because only then does anybody outside notice. What it does on which
event is decided in :mod:`celery_lease.group.plan`.
"""

from __future__ import annotations

from .member import NAME_VARIABLE, Member
from .plan import LAST_WORDS, longest_stop

__all__ = ["LAST_WORDS", "NAME_VARIABLE", "Member", "longest_stop"]
