"""The beat board: memory in which task processes and the worker's main process meet.

One fixed-size record a lease. Each cell has exactly one writer: the task writes its beats, quiet
period and progress; the keeper writes the gate, the deadline and the flags. All are single
aligned 8-byte stores, so no lock is needed and none exists: a process that is killed or stopped
in the middle of a beat leaves nothing behind that another would wait for.

Invariant: a cell written for one lease is never taken for another's. Every time in the board
carries the record's generation, records are reused in turn (oldest first, with others in
between), and a reader drops what has another generation than its own. So a task that still beats
long after its lease ended, or a thread that outlived it, can neither keep somebody else's lease
alive nor take somebody else's deadline for its own, until a million leases later.

Times are doubles, because a beat that adds and compares them costs a third less than one that
does so with 64-bit integers, which Python keeps in three digits. A cell holds
``generation * SPAN + seconds since the board's epoch``, exact to 15 microseconds.
"""

from __future__ import annotations

import math
import mmap
import os
import struct
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from celery_lease.core.clock import host_seconds
from celery_lease.core.lending import Lending

# A double has 53 bits: 27 for seconds (four years), 10 for generations, 16 for fractions.
SPAN = 2.0**27
GRAINS = 2.0**16  # a second's; what is written by write_time is rounded down to one
LONGEST = SPAN - 1.0
#: A board's epoch is a multiple of this, so it lasts for two years on a host of any age.
EPOCHS = SPAN / 2

RECORD_BYTES = 256
RECORD_CELLS = RECORD_BYTES // 8
NOTE_BYTES = 120

# The first cache line of a record is the task's, the second the keeper's, the rest is the note.
# All are times but PROGRESS, OUTCOME, CLOSED, FLAGS, PUBLISHING, WITHDRAWN and NOTE_LENGTH
# (integers), and DONE and TOTAL (plain numbers).
BEAT, QUIET, STARTED, DONE, TOTAL, PROGRESS, OUTCOME, CLOSED = range(8)
GATE, DEADLINE, FLAGS, PUBLISHING, WITHDRAWN = range(8, 13)
NOTE_LENGTH = 16

FLAG_BITS = 8

FLAG_LOST = 1
FLAG_TAKEN = 2
FLAG_MAX_DURATION = 4
FLAG_SHUTDOWN = 8
FLAG_CANCELLED = 16
FLAG_LIMIT = 32

FLAG_MASK = (1 << FLAG_BITS) - 1

# Cells of record 0, which no lease ever gets.
SHUTTING_DOWN, MARK, EPOCH = range(3)
#: In MARK, so that what is opened by an outlived address is not taken for a board. Version 1.
MARK_VALUE = int.from_bytes(b"leases\x00\x01", "little")


class Outcome(IntEnum):
    """How a task ended, for a main process that cannot hear of it from its pool."""

    UNTOLD = 0
    DONE = 1  #: its outcome is stored: acknowledge
    HANDED_OVER = 2  #: it stopped because its worker does: return the message
    DISCARDED = 3  #: it had lost its lease


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
    def mark(self) -> int:
        """What is added to flags so that they carry this slot's generation."""
        return self.generation << FLAG_BITS


@dataclass(frozen=True, slots=True)
class Progress:
    """What a task last said of how far it is; None where it said nothing."""

    done: float | None = None
    total: float | None = None
    note: str = ""
    reports: int = 0  #: how often it said something


class Board:
    """The records of one worker.

    The creating process lends slots; no lock of that is held by, or needed in, a task process.
    """

    def __init__(self, memory: mmap.mmap, address: str, fd: int = -1) -> None:
        self.memory = memory
        self.address = address
        self.cells = memoryview(memory).cast("Q")
        self.numbers = memoryview(memory).cast("d")
        self._fd = fd
        self._lending = Lending(len(memory) // RECORD_BYTES)

    @classmethod
    def create(cls, slots: int = 65536, *, epoch: float | None = None) -> Board:
        """Create a board for *slots* - 1 leases; it takes memory only as records are first lent."""
        fd, address = _anonymous_file()
        os.ftruncate(fd, slots * RECORD_BYTES)
        board = cls(mmap.mmap(fd, slots * RECORD_BYTES), address, fd)
        board._begin(epoch)
        _boards[address] = board
        return board

    @classmethod
    def private(cls) -> Board:
        """Create a board for one context that no other worker knows of; its forks share it."""
        board = cls(mmap.mmap(-1, 2 * RECORD_BYTES), "")
        board._begin(None)
        return board

    @classmethod
    def at(cls, address: str) -> Board:
        """Return the board at *address*: inherited by a forked child, opened by a spawned one.

        Raises:
            OSError: The worker that made it is gone.
        """
        if address not in _boards:
            with Path(address).open("r+b") as file:
                size = os.fstat(file.fileno()).st_size
                if size < RECORD_BYTES:
                    raise FileNotFoundError(address)
                board = cls(mmap.mmap(file.fileno(), size), address)
            if board.cells[MARK] != MARK_VALUE:
                raise FileNotFoundError(address)
            _boards[address] = board
        return _boards[address]

    def _begin(self, epoch: float | None) -> None:
        if epoch is None:
            epoch = host_seconds() // EPOCHS * EPOCHS
        self.numbers[EPOCH] = epoch
        self.cells[MARK] = MARK_VALUE

    def base(self, slot: Slot) -> float:
        """Return what is added to a time so that it carries the slot's generation."""
        return slot.generation * SPAN - self.numbers[EPOCH]

    def limit(self, slot: Slot) -> float:
        """Return what is above all times that carry the slot's generation."""
        return (slot.generation + 1) * SPAN

    def record(self, slot: Slot) -> memoryview[float]:
        """Return the slot's cells as doubles, for the beat."""
        return self.numbers[slot.first : slot.first + RECORD_CELLS]

    def lend(self) -> Slot:
        """Lend a blank record.

        Raises:
            BoardFull: There is none left.
        """
        taken = self._lending.take()
        if taken is None:
            raise BoardFull
        slot = Slot(*taken)
        start = slot.index * RECORD_BYTES
        self.memory[start : start + RECORD_BYTES] = _BLANK
        return slot

    @property
    def is_full(self) -> bool:
        """Whether there is no record left to lend."""
        return self._lending.is_all_lent

    def give_back(self, slot: Slot) -> None:
        """Take a record back; it is lent again only after all others that rest now."""
        self.numbers[slot.first + GATE] = 0.0
        self._lending.give_back(slot.index)

    def read_time(self, slot: Slot, cell: int) -> float:
        """Return a time in seconds, or 0.0 if the cell is blank or another generation's."""
        value = self.numbers[slot.first + cell] - slot.generation * SPAN
        return value + self.numbers[EPOCH] if 0.0 < value < SPAN else 0.0

    def write_time(self, slot: Slot, cell: int, seconds: float) -> None:
        """Write a time in seconds with the slot's generation; one too far away as the last."""
        time = min(max(seconds - self.numbers[EPOCH], 0.0), LONGEST)
        value = slot.generation * SPAN + math.floor(time * GRAINS) / GRAINS
        self.numbers[slot.first + cell] = value

    def owns(self, slot: Slot) -> bool:
        """Whether the record is still, or was last, the slot's; for the task's side."""
        return self.read_time(slot, DEADLINE) > 0.0

    def allow(self, slot: Slot, deadline: float) -> None:
        """Let the slot's task beat until *deadline*, unless it was flagged."""
        if not self.is_latest(slot):
            return
        first = slot.first
        self.write_time(slot, DEADLINE, deadline)
        if not self.cells[first + FLAGS] & FLAG_MASK:
            self.numbers[first + GATE] = self.numbers[first + DEADLINE]

    def flag(self, slot: Slot, flags: int) -> None:
        """Tell the slot's task something at its next beat. The flag is written before the gate.

        For one thread at a time, as :meth:`allow` is.
        """
        if not self.is_latest(slot):
            return
        first = slot.first
        self.cells[first + FLAGS] = slot.mark | (self.cells[first + FLAGS] & FLAG_MASK) | flags
        self.numbers[first + GATE] = 0.0

    def tell_outcome(self, slot: Slot, outcome: Outcome) -> None:
        """Say how the task ended, once what came of it is stored."""
        self.cells[slot.first + OUTCOME] = slot.mark | outcome

    def read_outcome(self, slot: Slot) -> Outcome:
        """Return how the task ended, as far as it is told."""
        value = self.cells[slot.first + OUTCOME]
        return Outcome(value & FLAG_MASK if value >> FLAG_BITS == slot.generation else 0)

    def read_flags(self, slot: Slot) -> int | None:
        """Return what the task was told; None if the record is another lease's by now."""
        value = self.cells[slot.first + FLAGS]
        if (value and value >> FLAG_BITS != slot.generation) or not self.owns(slot):
            return None
        return value & FLAG_MASK

    def is_latest(self, slot: Slot) -> bool:
        """Whether the record was not lent again since; a late writer must not touch its heir.

        For the process that lends them.
        """
        return self._lending.is_latest(slot.index, slot.generation)

    @property
    def shutting_down(self) -> bool:
        """Whether the worker was asked to stop."""
        return bool(self.cells[SHUTTING_DOWN])

    def announce_shutdown(self) -> None:
        """Let all tasks see that the worker was asked to stop."""
        self.cells[SHUTTING_DOWN] = 1

    def report(self, slot: Slot, done: float | None, total: float | None, note: str | None) -> None:
        """Write progress, each part if given.

        Raises:
            TypeError: *done* or *total* is not a number.
        """
        first = slot.first
        for cell, number in ((DONE, done), (TOTAL, total)):
            if number is not None:
                self.numbers[first + cell] = _number(number)
        if note is not None:
            self._write_note(slot, note)
        self.cells[first + PROGRESS] += 1

    def read_progress(self, slot: Slot) -> Progress:
        """Return what the task last said; a note being written at this moment may be mixed."""
        first = slot.first
        length = min(self.cells[first + NOTE_LENGTH], NOTE_BYTES)
        start = (first + NOTE_LENGTH + 1) * 8
        note = bytes(self.memory[start : start + length]).decode(errors="replace")
        done, total = (self.numbers[first + cell] for cell in (DONE, TOTAL))
        return Progress(
            None if math.isnan(done) else done,
            None if math.isnan(total) else total,
            note,
            self.cells[first + PROGRESS],
        )

    def _write_note(self, slot: Slot, note: str) -> None:
        text = cut(note)
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


_BLANK = bytearray(RECORD_BYTES)
_BLANK[DONE * 8 : TOTAL * 8 + 8] = struct.pack("=2d", math.nan, math.nan)


def cut(note: str) -> bytes:
    """Return a note as UTF-8, whole characters, in at most :data:`NOTE_BYTES` bytes."""
    text = str(note).encode(errors="replace")
    return text[:NOTE_BYTES].decode(errors="ignore").encode()


def _number(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
    except (TypeError, ValueError):
        raise TypeError(f"progress is told in numbers, not {value!r}") from None


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
