"""What the beat board remembers, for whom, and across which processes."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import threading
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, strategies as st

from celery_lease import board as beatboard
from celery_lease.board import (
    BEAT,
    DEADLINE,
    GATE,
    NOTE_BYTES,
    QUIET,
    STARTED,
    Board,
    BoardFull,
    Slot,
    file as boardfile,
)
from celery_lease.board.lending import GENERATIONS, RESTING
from celery_lease.core.loss import FLAG_LOST, FLAG_SUPERSEDED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

GRAIN = 1 / beatboard.GRAINS
YEAR = 365 * 86400.0


@pytest.fixture
def board() -> Iterator[Board]:
    """Return a board with room for a few leases more than must rest."""
    board = Board.create(RESTING + 10)
    yield board
    board.close()


def in_child(work: Callable[[], object]) -> int:
    """Run ``work`` in a forked child and return its exit status: 0 if it returned true."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            status = 0 if work() else 2
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_time_comes_back_as_it_was_written_and_never_later(board: Board) -> None:
    """Breaks when a deadline is rounded up: then a task trusts it longer than the broker does."""
    slot = board.lend()
    board.write_time(slot, DEADLINE, 1234.567891234)
    assert 1234.567891234 - GRAIN <= board.read_time(slot, DEADLINE) <= 1234.567891234


@given(st.floats(0.001, YEAR * 3, allow_nan=False), st.integers(1, GENERATIONS - 1))
def test_every_time_survives_every_generation(seconds: float, generation: int) -> None:
    """Breaks when generation and time share bits, so that one changes the other."""
    board = Board.create(2, epoch=0.0)
    slot = Slot(1, generation)
    board.write_time(slot, BEAT, seconds)
    assert seconds - GRAIN <= board.read_time(slot, BEAT) <= seconds
    assert board.read_time(Slot(1, generation % (GENERATIONS - 1) + 1), BEAT) == 0.0
    board.close()


@pytest.mark.parametrize("seconds", [math.inf, 10 * YEAR, 1e300])
def test_a_time_too_far_away_is_the_last_one_and_of_the_same_generation(
    board: Board, seconds: float
) -> None:
    """Breaks when a lease_extension of ten years runs over into the next generation."""
    slot = board.lend()
    board.allow(slot, seconds)
    cells, _, limit = board.record(slot)
    assert board.read_time(slot, DEADLINE) > 2 * YEAR
    assert cells[GATE] < limit


def test_a_host_that_is_up_for_ten_years_has_leases_too() -> None:
    """Breaks when times are kept from boot: after four years of uptime none would fit."""
    now = 10 * YEAR + 7.0
    board = Board.create(4, epoch=now // beatboard.EPOCHS * beatboard.EPOCHS)
    slot = board.lend()
    board.allow(slot, now + 300)
    assert board.read_time(slot, DEADLINE) == pytest.approx(now + 300, abs=GRAIN)
    cells, base, limit = board.record(slot)
    assert now + base < cells[GATE] < limit
    board.close()


def test_a_fresh_record_is_blank(board: Board) -> None:
    """Breaks when a lease starts with another's beats, flags or progress."""
    slot = board.lend()
    board.allow(slot, 100.0)
    board.flag(slot, FLAG_LOST)
    board.report(slot, 1, 2, "three")
    board.free(slot)
    again = lend_until(board, slot.index)
    assert [board.read_time(again, cell) for cell in (BEAT, QUIET, STARTED, DEADLINE)] == [0.0] * 4
    assert board.read_progress(again) == beatboard.Progress()
    board.allow(again, 100.0)
    assert board.read_flags(again) == 0


def lend_until(board: Board, index: int) -> Slot:
    """Lend and give back until a record comes round again."""
    while (slot := board.lend()).index != index:
        board.free(slot)
    return slot


def test_a_record_rests_while_many_others_are_used(board: Board) -> None:
    """Breaks when records are reused at once: a late beat would come near its own generation."""
    first = board.lend()
    board.free(first)
    between = 0
    while (slot := board.lend()).index != first.index:
        board.free(slot)
        between += 1
    assert between >= RESTING - 1
    assert slot.generation == first.generation + 1


def test_generations_go_round_without_ever_being_zero() -> None:
    """Breaks when a blank cell (generation zero) passes for a record's own."""
    board = Board.create(2)
    seen = []
    for _ in range(GENERATIONS + 1):
        slot = board.lend()
        seen.append(slot.generation)
        board.free(slot)
    assert min(seen) == 1
    assert max(seen) == GENERATIONS - 1
    assert all(one != two for one, two in pairwise(seen))
    board.close()


def test_what_a_former_holder_writes_is_nothing_to_the_next(board: Board) -> None:
    """Breaks when a task that outlived its lease keeps somebody else's lease alive."""
    old = board.lend()
    board.free(old)
    new = lend_until(board, old.index)
    board.write_time(old, BEAT, 500.0)
    board.write_time(old, QUIET, 900.0)
    assert board.read_time(new, BEAT) == 0.0
    assert board.read_time(new, QUIET) == 0.0


def test_what_is_said_to_a_former_holder_does_not_reach_the_next(board: Board) -> None:
    """Breaks when an answer that comes late closes, or opens, the gate of a record's heir."""
    old = board.lend()
    board.free(old)
    new = lend_until(board, old.index)
    board.allow(new, 800.0)
    board.flag(old, FLAG_LOST)
    board.allow(old, 900.0)
    assert board.read_flags(new) == 0
    assert board.read_time(new, DEADLINE) == pytest.approx(800.0, abs=GRAIN)
    assert board.numbers[new.first + GATE] == board.numbers[new.first + DEADLINE]


def test_a_former_holder_sees_that_the_record_is_not_its_own(board: Board) -> None:
    """Breaks when a stale task takes the next holder's deadline for its own."""
    old = board.lend()
    board.allow(old, 700.0)
    board.free(old)
    new = lend_until(board, old.index)
    board.allow(new, 800.0)
    assert board.read_time(old, DEADLINE) == 0.0
    assert board.read_flags(old) is None
    assert not board.owns(old)
    assert board.owns(new)


def test_a_flag_closes_the_gate_for_good(board: Board) -> None:
    """Breaks when an extension that is answered after the loss lets the task beat again."""
    slot = board.lend()
    board.allow(slot, 100.0)
    board.flag(slot, FLAG_LOST)
    board.flag(slot, FLAG_SUPERSEDED)
    board.allow(slot, 200.0)
    assert board.numbers[slot.first + GATE] == 0.0
    assert board.read_flags(slot) == FLAG_LOST | FLAG_SUPERSEDED
    assert board.read_time(slot, DEADLINE) == pytest.approx(200.0, abs=GRAIN)


def test_a_full_board_says_so_and_lends_again_what_comes_back() -> None:
    """Breaks when a lease gets a record that another one has."""
    board = Board.create(4)
    slots = [board.lend() for _ in range(3)]
    with pytest.raises(BoardFull):
        board.lend()
    assert len({slot.index for slot in slots}) == 3
    assert 0 not in {slot.index for slot in slots}
    board.free(slots[1])
    assert board.lend() == Slot(slots[1].index, 2)
    board.close()


def test_eight_threads_never_hold_the_same_record() -> None:
    """Breaks when lending is not one step for pools whose threads all start and end leases."""
    board = Board.create(64)
    held: set[int] = set()
    doubled: list[int] = []

    def work() -> None:
        for _ in range(500):
            slot = board.lend()
            if slot.index in held:
                doubled.append(slot.index)
            held.add(slot.index)
            held.discard(slot.index)
            board.free(slot)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert doubled == []
    board.close()


def test_a_forked_child_writes_into_the_same_memory(board: Board) -> None:
    """Breaks when a prefork task's beats stay in its own copy of the board."""
    slot = board.lend()
    board.allow(slot, 100.0)

    def child() -> bool:
        same = Board.at(board.address)
        same.write_time(slot, BEAT, 55.0)
        same.report(slot, 3, 4, "from the child")
        return same.read_time(slot, DEADLINE) > 99.0

    assert in_child(child) == 0
    assert board.read_time(slot, BEAT) == pytest.approx(55.0, abs=GRAIN)
    assert board.read_progress(slot) == beatboard.Progress(3.0, 4.0, "from the child", 1)


SPAWNED = """
import json, sys
from celery_lease.board import BEAT, DEADLINE, Board, Slot
address, index, generation = json.loads(sys.argv[1])
board, slot = Board.at(address), Slot(index, generation)
board.write_time(slot, BEAT, 77.0)
print(json.dumps([board.read_time(slot, DEADLINE), board.shutting_down]))
"""


def spawn(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a process that shares nothing with this one but the board's address."""
    return subprocess.run(
        [sys.executable, "-c", SPAWNED, json.dumps(arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_spawned_child_opens_the_board_by_its_address() -> None:
    """Breaks when a pool whose processes are spawned cannot reach the board or its epoch."""
    board = Board.create(8, epoch=40.0, named=True)
    slot = board.lend()
    board.allow(slot, 100.0)
    board.announce_shutdown()
    done = spawn(board.address, slot.index, slot.generation)
    assert json.loads(done.stdout or "null") == [100.0, True], done.stderr
    assert board.read_time(slot, BEAT) == 77.0
    board.close()


def test_the_address_of_a_worker_that_is_gone_opens_nothing(board: Board) -> None:
    """Breaks when a task goes on with a board that nobody reads any more."""
    address = board.address
    board.close()
    with pytest.raises(OSError, match="No such file"):
        Board.at(address)


@pytest.mark.parametrize("content", [b"", b"x" * 4096])
def test_an_address_that_leads_to_something_else_opens_nothing(
    tmp_path: Path, content: bytes
) -> None:
    """Breaks when a reused process id makes a task write its beats into a stranger's file."""
    path = tmp_path / "not-a-board"
    path.write_bytes(content)
    with pytest.raises(OSError, match="not-a-board"):
        Board.at(str(path))
    assert path.read_bytes() == content


def test_a_board_leaves_no_file_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks when hosts whose workers spawn collect a file for every one that ever ran."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    board = Board.create(4, named=True)
    assert Path(board.address).parent == tmp_path
    assert Path(board.address).stat().st_mode & 0o777 == 0o600
    assert Board.at(board.address) is board
    board.close()
    assert list(tmp_path.iterdir()) == []


def test_the_file_of_a_killed_worker_goes_with_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And that of a living one stays, as does what is no board's."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    left, foreign = tmp_path / f"{boardfile.PREFIX}left", tmp_path / "other"
    left.touch()
    foreign.touch()
    first, second = Board.create(4, named=True), Board.create(4, named=True)
    kept = {Path(first.address), Path(second.address), foreign}
    assert set(tmp_path.iterdir()) == kept
    first.close()
    second.close()
    assert list(tmp_path.iterdir()) == [foreign]


def test_a_file_that_was_taken_for_a_leftover_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two workers start at once: one removes what the other has made and not locked yet."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    make, made = boardfile.tempfile.mkstemp, []

    def mkstemp(**options: Any) -> tuple[int, str]:
        fd, path = make(**options)
        if not made:
            boardfile._remove_if_left(Path(path))
        made.append(path)
        return fd, path

    monkeypatch.setattr(boardfile.tempfile, "mkstemp", mkstemp)
    board = Board.create(4, named=True)
    assert [Path(board.address)] == list(tmp_path.iterdir()) == [Path(made[1])]
    board.close()


def test_a_board_takes_memory_only_for_records_in_use() -> None:
    """Breaks when every worker pays for its largest possible number of leases."""
    board = Board.create(named=True)
    before = memory_of(board)
    slots = [board.lend() for _ in range(100)]
    grown = memory_of(board) - before
    assert 0 < grown <= len(slots) * beatboard.RECORD_BYTES + 8192
    board.close()


def memory_of(board: Board) -> int:
    """Return the bytes that the board's file takes."""
    return Path(board.address).stat().st_blocks * 512


def test_a_private_board_is_shared_with_forks_only() -> None:
    """Breaks when a task that is called directly cannot beat from a process it forked."""
    board = Board.private()
    slot = board.lend()

    def child() -> bool:
        board.write_time(slot, BEAT, 5.0)
        return True

    assert in_child(child) == 0
    assert board.read_time(slot, BEAT) == 5.0
    assert board.address == ""
    with pytest.raises(BoardFull):
        board.lend()


def test_shutdown_is_announced_to_all(board: Board) -> None:
    """Breaks when tasks cannot see that their worker was asked to stop."""
    assert not board.shutting_down
    board.announce_shutdown()
    assert board.shutting_down


@pytest.mark.parametrize(
    ("note", "kept"),
    [
        ("a" * 119 + "é", "a" * 119),
        ("a" * 118 + "é", "a" * 118 + "é"),
        ("a" * 118 + "€uro", "a" * 118),
        ("🐇" * 40, "🐇" * 30),
        ("half \ud83d", "half ?"),
        ("", ""),
        (42, "42"),
        (None, "kept"),
    ],
)
def test_a_note_is_cut_between_characters(board: Board, note: str, kept: str) -> None:
    """Breaks when a note ends in half a character, or an odd one stops the task."""
    slot = board.lend()
    board.report(slot, None, None, "kept")
    board.report(slot, None, None, note)
    assert board.read_progress(slot).note == kept


@given(st.text())
def test_every_note_is_kept_from_its_beginning(note: str) -> None:
    """Breaks when a note grows past its cells, into the next lease's record."""
    text = beatboard.cut(note).decode()
    assert note.startswith(text)
    assert len(note.encode()) > NOTE_BYTES - 4 or text == note


def test_the_longest_note_ends_within_its_record(board: Board) -> None:
    """Breaks when the note's place is smaller than what is kept of it."""
    one, two = board.lend(), board.lend()
    board.report(one, None, None, "x" * 500)
    assert (
        (beatboard.NOTE_LENGTH + 1) * 8 + NOTE_BYTES <= beatboard.SINCE * 8 < beatboard.RECORD_BYTES
    )
    assert board.read_progress(one).note == "x" * NOTE_BYTES
    assert board.read_progress(two) == beatboard.Progress()


def test_a_shorter_note_replaces_a_longer_one(board: Board) -> None:
    """Breaks when the end of an old note shows behind a new one."""
    slot = board.lend()
    board.report(slot, None, None, "a long note")
    board.report(slot, None, None, "short")
    assert board.read_progress(slot).note == "short"


@pytest.mark.parametrize(
    ("value", "read"),
    [(True, 1.0), (3, 3.0), (2.5, 2.5), (10**400, math.inf), (-math.inf, -math.inf), ("7", 7.0)],
)
def test_progress_takes_whatever_is_a_number(board: Board, value: float, read: float) -> None:
    """Breaks when an unusual number stops the work that it only describes."""
    slot = board.lend()
    board.report(slot, value, None, None)
    assert board.read_progress(slot).done == read


def test_progress_that_is_not_a_number_is_not_told(board: Board) -> None:
    """Breaks when NaN reaches a reader, who cannot write it as JSON."""
    slot = board.lend()
    board.report(slot, math.nan, None, None)
    assert board.read_progress(slot).done is None


@pytest.mark.parametrize("value", ["many", object(), [1]])
def test_progress_of_another_type_is_the_authors_mistake(board: Board, value: float) -> None:
    """Breaks when the message does not show what was passed."""
    slot = board.lend()
    with pytest.raises(TypeError, match="numbers, not"):
        board.report(slot, value, None, None)


def test_progress_that_was_not_told_is_none_rather_than_zero(board: Board) -> None:
    """Breaks when a task without progress is shown at 0 of 0."""
    slot = board.lend()
    board.report(slot, None, 9, None)
    assert board.read_progress(slot) == beatboard.Progress(None, 9.0, "", 1)
