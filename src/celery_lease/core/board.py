"""The beat board: memory in which task processes and the worker's main process meet.

One fixed-size record a lease. Each cell has exactly one writer: the task writes its beats, quiet
period and progress; the keeper writes the gate, the deadline and the flags. All are single
aligned 8-byte stores, so no lock is needed and none exists: a process that is killed or stopped
in the middle of a beat leaves nothing behind that another would wait for.

Invariant: a cell written for one lease is never taken for another's. Every time in the board
carries the record's generation in its upper bits, records are reused in turn (oldest first, with
others in between), and a reader drops what has another generation than its own. So a task that still beats long after its
lease ended, or a thread that outlived it, can neither keep somebody else's lease alive nor take
somebody else's deadline for its own.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import threading
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from celery_lease.core.clock import NANOSECONDS

# 57 bits of nanoseconds are four and a half years of uptime; 7 bits count the generations.
GENERATION_SHIFT = 57
GENERATIONS = 1 << (64 - GENERATION_SHIFT)
TIME_MASK = (1 << GENERATION_SHIFT) - 1

RECORD_BYTES = 256
#: Records that wait between one use and the next; more are taken into use only when fewer wait.
RESTING = 64
RECORD_CELLS = RECORD_BYTES // 8
NOTE_BYTES = 120

# The first cache line of a record is the task's, the second the keeper's, the rest is the note.
BEAT, QUIET, STARTED, DONE, TOTAL, PROGRESS = range(6)
GATE, DEADLINE, FLAGS = range(8, 11)
NOTE_LENGTH = 16

FLAG_LOST = 1
FLAG_TAKEN = 2
FLAG_MAX_DURATION = 4
FLAG_SHUTDOWN = 8
FLAG_CANCELLED = 16

SHUTTING_DOWN = 0  # a cell of record 0, which no lease ever gets


class BoardFull(Exception):
    """Every record is in use."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A record lent to one lease."""

    index: int
    generation: int

    @property
    def first(self) -> int:
        """Index of the record's first cell."""
        return self.index * RECORD_CELLS

    @property
    def base(self) -> int:
        """What is added to a time so that it carries this slot's generation."""
        return self.generation << GENERATION_SHIFT


class Board:
    """The records of one worker.

    The creating process lends slots; its lock guards only the list of resting ones and is never
    held by, or needed in, a task process.
    """

    def __init__(self, memory: mmap.mmap, address: str, slots: int, fd: int = -1) -> None:
        self.memory = memory
        self.address = address
        self.cells = memoryview(memory).cast("Q")
        self.numbers = memoryview(memory).cast("d")
        self._fd = fd
        self._lock = threading.Lock()
        self._slots = slots
        self._resting: deque[int] = deque()
        self._generations = [0]  # of the records in use so far; record 0 is the worker's own

    @classmethod
    def create(cls, slots: int = 65536) -> Board:
        """Create a board for *slots* - 1 leases; it takes memory only as records are first lent."""
        fd, address = _anonymous_file()
        os.ftruncate(fd, slots * RECORD_BYTES)
        board = cls(mmap.mmap(fd, slots * RECORD_BYTES), address, slots, fd)
        _boards[address] = board
        return board

    @classmethod
    def private(cls) -> Board:
        """Create a board for one context that no other process shares."""
        return cls(mmap.mmap(-1, 2 * RECORD_BYTES), "", 2)

    @classmethod
    def at(cls, address: str) -> Board:
        """Return the board at *address*: inherited by a forked child, opened by a spawned one.

        Raises:
            OSError: The worker that made it is gone.
        """
        if address not in _boards:
            with Path(address).open("r+b") as file:
                size = os.fstat(file.fileno()).st_size
                memory = mmap.mmap(file.fileno(), size)
            _boards[address] = cls(memory, address, size // RECORD_BYTES)
        return _boards[address]

    def lend(self) -> Slot:
        """Lend a blank record.

        Raises:
            BoardFull: There is none left.
        """
        with self._lock:
            index = self._next()
            generation = self._generations[index] % (GENERATIONS - 1) + 1
            self._generations[index] = generation
        start = index * RECORD_BYTES
        self.memory[start : start + RECORD_BYTES] = bytes(RECORD_BYTES)
        return Slot(index, generation)

    def _next(self) -> int:
        unused = len(self._generations)
        if len(self._resting) < RESTING and unused < self._slots:
            self._generations.append(0)
            return unused
        if not self._resting:
            raise BoardFull
        return self._resting.popleft()

    def give_back(self, slot: Slot) -> None:
        """Take a record back; it is lent again only after all others that rest now."""
        self.cells[slot.first + GATE] = 0
        with self._lock:
            self._resting.append(slot.index)

    def read_time(self, slot: Slot, cell: int) -> float:
        """Return a time in seconds, or 0.0 if the cell is blank or another generation's."""
        value = self.cells[slot.first + cell]
        if value >> GENERATION_SHIFT != slot.generation:
            return 0.0
        return (value & TIME_MASK) / NANOSECONDS

    def write_time(self, slot: Slot, cell: int, seconds: float) -> None:
        """Write a time in seconds with the slot's generation."""
        self.cells[slot.first + cell] = slot.base + int(seconds * NANOSECONDS)

    def allow(self, slot: Slot, deadline: float) -> None:
        """Let the slot's task beat until *deadline*, unless it was flagged."""
        first = slot.first
        self.write_time(slot, DEADLINE, deadline)
        if not self.cells[first + FLAGS] & TIME_MASK:
            self.cells[first + GATE] = self.cells[first + DEADLINE]

    def flag(self, slot: Slot, flags: int) -> None:
        """Tell the slot's task something at its next beat. The flag is written before the gate."""
        first = slot.first
        self.cells[first + FLAGS] = slot.base | (self.cells[first + FLAGS] & TIME_MASK) | flags
        self.cells[first + GATE] = 0

    @property
    def shutting_down(self) -> bool:
        """Whether the worker was asked to stop."""
        return bool(self.cells[SHUTTING_DOWN])

    def announce_shutdown(self) -> None:
        """Let all tasks see that the worker was asked to stop."""
        self.cells[SHUTTING_DOWN] = 1

    def read_note(self, slot: Slot) -> str:
        """Return the task's latest note; a note being written at this moment may come out cut."""
        length = min(self.cells[slot.first + NOTE_LENGTH], NOTE_BYTES)
        start = (slot.first + NOTE_LENGTH + 1) * 8
        return bytes(self.memory[start : start + length]).decode(errors="replace")

    def write_note(self, slot: Slot, note: str) -> None:
        """Write a note, cut to :data:`NOTE_BYTES` bytes."""
        text = note.encode()[:NOTE_BYTES]
        start = (slot.first + NOTE_LENGTH + 1) * 8
        self.memory[start : start + len(text)] = text
        self.cells[slot.first + NOTE_LENGTH] = len(text)

    def close(self) -> None:
        """Forget the board and free its file; mapped memory goes with the last process."""
        _boards.pop(self.address, None)
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            with suppress(OSError):
                if not self.address.startswith("/proc/"):
                    Path(self.address).unlink()


# Boards of this process by address. Written by the worker's main thread before the pool starts
# (children inherit it) and by a task process that opens one; a dict store is atomic.
_boards: dict[str, Board] = {}


def _anonymous_file() -> tuple[int, str]:
    """Make a file in memory that a spawned child can open by path; gone with the main process."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("celery-lease-board", os.MFD_CLOEXEC)
        return fd, f"/proc/{os.getpid()}/fd/{fd}"
    fd, path = tempfile.mkstemp(prefix="celery-lease-board-")
    return fd, path
