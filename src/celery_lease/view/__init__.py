"""One view of all leases, for the commands and the page.

It merges three sources into one row for each lease: the workers' replies, the broker's records
(Redis, pgmq), and, if the broker has no records, the last reply of a worker that no longer answers.
No source is complete: a worker that died does not answer, and a broker knows no beats.
Parked messages, which no worker holds, are rows of their own; a bounded number is listed.

No I/O of its own: :class:`Collector` is given :class:`Sources`, and can be kept, as by a page that
is refreshed. :class:`LeaseRow` describes a row.
"""

from __future__ import annotations

from .collector import Collector, Sources, View, view_of
from .row import LeaseRow, Progress

__all__ = ["Collector", "LeaseRow", "Progress", "Sources", "View", "view_of"]
