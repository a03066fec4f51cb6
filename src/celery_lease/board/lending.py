"""Lends the records of a beat board, each use with its own generation.

Only for the process that created the board: task processes read and write records, but lend none.
"""

from __future__ import annotations

import threading
from collections import deque

#: Generations of one record before the first is used again; a power of two, for the doubles.
GENERATIONS = 1 << 10
#: Free records that are kept waiting; unused records are taken first while fewer wait.
RESTING = 1024


class Lending:
    """Lends records by number; one that was freed is lent again after the other free ones."""

    def __init__(self, records: int) -> None:
        self._records = records
        self._lock = threading.Lock()  # for one taking thread at a time
        self._resting: deque[int] = deque()
        self._generations = [0]  # of the records used so far; record 0 is the worker's own

    def take(self) -> tuple[int, int] | None:
        """Return a record's number and its new generation; None: all records are in use."""
        with self._lock:
            index = len(self._generations)
            if len(self._resting) < RESTING and index < self._records:
                self._generations.append(0)
            elif self._resting:
                index = self._resting.popleft()
            else:
                return None
            self._generations[index] = self._generations[index] % (GENERATIONS - 1) + 1
            return index, self._generations[index]

    @property
    def is_all_lent(self) -> bool:
        """Whether all records are in use."""
        return len(self._generations) >= self._records and not self._resting

    def free(self, index: int) -> None:
        """Free a record; it is lent again only after all others that are free now."""
        self._resting.append(index)

    def is_latest(self, index: int, generation: int) -> bool:
        return self._generations[index] == generation
