"""The example's packer: the same tree gives the same archive, and a checksum that says so."""

from __future__ import annotations

import gzip
import hashlib
import os
import tarfile
from typing import TYPE_CHECKING

import pytest
from example_project.packer import (
    ArchiveWriter,
    Plan,
    TreeChangedError,
    archive_checksum,
    expected_checksum,
)

if TYPE_CHECKING:
    from pathlib import Path

BIG = bytes(range(256)) * 1000
CHUNK = 4096


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A small tree with all that can be in one: empty, big, long-named, linked, skipped."""
    root = tmp_path / "tree"
    (root / "deep" / ("n" * 120)).mkdir(parents=True)
    (root / "empty_directory").mkdir()
    (root / "__pycache__").mkdir()
    (root / "__pycache__" / "a.pyc").write_bytes(b"written by whoever imports it")
    (root / "empty").touch()
    (root / "big.bin").write_bytes(BIG)
    (root / "deep" / ("n" * 120) / "leaf.txt").write_text("leaf")
    (root / "block").write_bytes(b"x" * 512)
    (root / "link").symlink_to("big.bin")
    (root / "run").write_text("#!/bin/sh\n")
    (root / "run").chmod(0o755)
    return root


def pack(tree: Path, target: Path, chunk_size: int = CHUNK, level: int = 6) -> str:
    """Pack the tree as the task does, without the task."""
    with target.open("wb") as file:
        archive = ArchiveWriter(file, level)
        for chunk in Plan.of(tree, chunk_size).chunks():
            archive.write(chunk)
        return archive.finish()


def test_packing_a_tree_twice_gives_the_same_bytes(tree: Path, tmp_path: Path) -> None:
    """An archive depends on names and contents, not on when it was made or when files were."""
    pack(tree, tmp_path / "one.tar.gz")
    for path in tree.rglob("*"):
        os.utime(path, (1, 1), follow_symlinks=False)
    pack(tree, tmp_path / "two.tar.gz")
    assert (tmp_path / "one.tar.gz").read_bytes() == (tmp_path / "two.tar.gz").read_bytes()


def test_the_checksum_is_the_one_that_tarfile_leads_to(tree: Path, tmp_path: Path) -> None:
    """The packer's own layout of the stream is the standard library's, byte by byte."""
    assert pack(tree, tmp_path / "a.tar.gz") == expected_checksum(tree)


@pytest.mark.parametrize("chunk_size", [1000, 4096, 10240, 1 << 20])
def test_the_checksum_does_not_depend_on_the_chunks(
    tree: Path, tmp_path: Path, chunk_size: int
) -> None:
    """Pieces of any size join into the same stream."""
    assert pack(tree, tmp_path / "a.tar.gz", chunk_size) == expected_checksum(tree)


def test_the_checksum_does_not_depend_on_the_compression(tree: Path, tmp_path: Path) -> None:
    """It is that of the content, so another zlib cannot change it."""
    fast, best = tmp_path / "fast.tar.gz", tmp_path / "best.tar.gz"
    assert pack(tree, fast, level=1) == pack(tree, best, level=9)
    assert fast.read_bytes() != best.read_bytes()


def test_reading_a_finished_archive_back_gives_its_checksum(tree: Path, tmp_path: Path) -> None:
    """What is on disk is what was hashed on the way there."""
    checksum = pack(tree, tmp_path / "a.tar.gz")
    assert archive_checksum(tmp_path / "a.tar.gz") == checksum


def test_changing_one_byte_changes_the_checksum(tree: Path) -> None:
    """A checksum that could not differ would prove nothing."""
    before = expected_checksum(tree)
    (tree / "big.bin").write_bytes(b"\xff" + BIG[1:])
    assert expected_checksum(tree) != before


def test_renaming_a_file_changes_the_checksum(tree: Path) -> None:
    """Names count as much as contents."""
    before = expected_checksum(tree)
    (tree / "empty").rename(tree / "void")
    assert expected_checksum(tree) != before


def test_files_that_the_interpreter_writes_do_not_count(tree: Path) -> None:
    """Importing from the tree while it is packed must not make the archive wrong."""
    before = expected_checksum(tree)
    (tree / "__pycache__" / "b.pyc").write_bytes(b"new")
    assert expected_checksum(tree) == before


def test_an_unpacked_archive_has_the_files_of_the_tree(tree: Path, tmp_path: Path) -> None:
    """Names, contents, modes and links come out as they went in."""
    pack(tree, tmp_path / "a.tar.gz")
    with tarfile.open(tmp_path / "a.tar.gz") as archive:
        found = {member.name: member for member in archive}
        big = archive.extractfile("big.bin")
        assert big is not None
        assert big.read() == BIG
    assert found["link"].linkname == "big.bin"
    assert (found["run"].mode, found["empty"].mode) == (0o755, 0o644)
    leaf = f"deep/{'n' * 120}/leaf.txt"
    assert {"big.bin", "block", "empty", "empty_directory", "run", leaf} < set(found)
    assert not any("__pycache__" in name for name in found)


def test_the_plan_knows_the_number_of_chunks_beforehand(tree: Path) -> None:
    """Progress has a total that the work then reaches exactly."""
    plan = Plan.of(tree, CHUNK)
    chunks = list(plan.chunks())
    assert len(chunks) == plan.total
    assert {len(chunk) for chunk in chunks[:-1]} == {CHUNK}
    assert sum(map(len, chunks)) == plan.size


def test_a_small_tree_is_packed_in_many_small_chunks(tree: Path) -> None:
    """Work that beats once a chunk needs many chunks, or its lease runs out within one."""
    plan = Plan.of(tree)
    assert 100 <= plan.total <= 102
    assert plan.total == len(list(plan.chunks()))


@pytest.mark.parametrize("content", [BIG + b"more", BIG[:-1]])
def test_a_file_that_changes_its_size_under_the_packer_is_an_error(
    tree: Path, content: bytes
) -> None:
    """The header was written with the old size: better no archive than a wrong one."""
    plan = Plan.of(tree, CHUNK)
    (tree / "big.bin").write_bytes(content)
    with pytest.raises(TreeChangedError, match=r"big\.bin"):
        list(plan.chunks())


def test_an_empty_tree_is_an_archive_too(tmp_path: Path) -> None:
    """Two zero blocks and padding, as tar has it."""
    (tmp_path / "none").mkdir()
    checksum = pack(tmp_path / "none", tmp_path / "a.tar.gz")
    assert checksum == hashlib.sha256(bytes(tarfile.RECORDSIZE)).hexdigest()
    assert checksum == expected_checksum(tmp_path / "none")


def test_packing_what_is_no_directory_is_refused(tmp_path: Path) -> None:
    """A wrong path is named at once, instead of giving an empty archive."""
    with pytest.raises(NotADirectoryError, match="nowhere"):
        Plan.of(tmp_path / "nowhere")


def test_an_archive_has_no_time_in_its_gzip_header(tmp_path: Path) -> None:
    """Bytes 4 to 7 of a gzip file are the time, and here they are zero."""
    archive = tmp_path / "a.tar.gz"
    with archive.open("wb") as file:
        ArchiveWriter(file).finish()
    assert archive.read_bytes()[4:8] == bytes(4)
    assert gzip.decompress(archive.read_bytes()) == b""
