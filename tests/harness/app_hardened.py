"""Leased tasks in processes whose files in /proc are nobody's: ``celery -A harness.app_hardened``.

That is what the kernel makes of a process that has changed its user, or that systemd hardens.
"""

from __future__ import annotations

import ctypes

from harness.app_leased import app

__all__ = ["app"]

_PR_SET_DUMPABLE = 4

ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
