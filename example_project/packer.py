"""The work: one directory tree into one deterministic ``.tar.gz``, chunk by chunk.

The same tree always gives the same tar stream: sorted names, no owners, no times, modes reduced to
executable or not. So a checksum of that stream says whether an archive is right, whoever made it
and however often it was begun. :func:`expected_checksum` lets :mod:`tarfile` lay out the stream
instead of the code here, so that the two can be held against each other.

Nothing here knows of Celery or of leases.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import stat
import tarfile
import zlib
from dataclasses import dataclass, replace
from typing import IO, TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

CHUNK_SIZE: Final = 256 * 1024
#: A small tree gets smaller chunks, so that its progress, too, is made in steps. Who beats once a
#: chunk must choose chunks that take far less than the lease.
LEAST_CHUNKS: Final = 100
#: Left out: what the interpreter writes while it runs would change under the packer, and installed
#: packages do not belong to the standard library.
SKIPPED: Final = frozenset({"__pycache__", "site-packages", "dist-packages"})
GZIP: Final = 16 + zlib.MAX_WBITS  # zlib's own gzip header holds no time and no name


class TreeChangedError(Exception):
    """A file changed its size while it was packed, so that the archive would be wrong."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path

    def __str__(self) -> str:
        return f"{self.path} changed while it was packed; pack a tree that stands still"


@dataclass(frozen=True, slots=True)
class Entry:
    """One member of the archive: where it is and the tar header that it gets."""

    path: Path
    header: tarfile.TarInfo

    @property
    def size(self) -> int:
        """Bytes of this entry in the tar stream: header blocks, content, padding."""
        return len(_header_blocks(self.header)) + _padded(self.header.size)


@dataclass(frozen=True, slots=True)
class Plan:
    """What will be packed, known before the first byte is read: so progress has a total."""

    entries: tuple[Entry, ...]
    chunk_size: int

    @classmethod
    def of(cls, tree: Path, chunk_size: int | None = None) -> Plan:
        """Look through ``tree`` (a directory) without reading its files.

        Args:
            tree: What to pack.
            chunk_size: In bytes; by default 256 KiB, or less if that were less than 100 chunks.

        Raises:
            NotADirectoryError: ``tree`` is something else, or is not there.
        """
        if not tree.is_dir():
            raise NotADirectoryError(tree)
        plan = cls(tuple(_scan(tree, tree)), chunk_size or CHUNK_SIZE)
        if chunk_size is None and plan.total < LEAST_CHUNKS:
            return replace(plan, chunk_size=max(tarfile.BLOCKSIZE, plan.size // LEAST_CHUNKS))
        return plan

    @property
    def size(self) -> int:
        """Bytes of the tar stream."""
        members = sum(entry.size for entry in self.entries)
        return _padded(members + 2 * tarfile.BLOCKSIZE, tarfile.RECORDSIZE)

    @property
    def total(self) -> int:
        """Number of chunks that :meth:`chunks` gives."""
        return -(-self.size // self.chunk_size)

    def chunks(self) -> Iterator[bytes]:
        """Give the tar stream in pieces of ``chunk_size`` bytes; the last one may be shorter.

        Raises:
            TreeChangedError: The tree did not stand still.
        """
        return _rechunk(self._stream(), self.chunk_size)

    def _stream(self) -> Iterator[bytes]:
        written = 0
        for entry in self.entries:
            yield _header_blocks(entry.header)
            if entry.header.isreg():
                yield from _content(entry)
            written += entry.size
        yield bytes(self.size - written)


class ArchiveWriter:
    """Compresses chunks into an open file, and knows the checksum of what went in so far."""

    def __init__(self, target: IO[bytes], level: int = 6) -> None:
        self._target = target
        self._deflate = zlib.compressobj(level, zlib.DEFLATED, GZIP)
        self._digest = hashlib.sha256()

    def write(self, chunk: bytes) -> None:
        """Add the next chunk of the tar stream."""
        self._digest.update(chunk)
        self._target.write(self._deflate.compress(chunk))

    def finish(self) -> str:
        """End the archive, put it on disk, and return the stream's SHA-256 in hex."""
        self._target.write(self._deflate.flush())
        self._target.flush()
        os.fsync(self._target.fileno())
        return self._digest.hexdigest()


def archive_checksum(archive: Path) -> str:
    """Read a finished archive back from disk and return its tar stream's SHA-256 in hex."""
    with gzip.open(archive, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def expected_checksum(tree: Path) -> str:
    """Return the SHA-256 in hex that every right archive of ``tree`` has, by :mod:`tarfile`."""
    sink = _HashSink()
    with tarfile.open(
        fileobj=cast("IO[bytes]", sink), mode="w|", format=tarfile.GNU_FORMAT
    ) as archive:
        for entry in _scan(tree, tree):
            if entry.header.isreg():
                with entry.path.open("rb") as content:
                    archive.addfile(entry.header, content)
            else:
                archive.addfile(entry.header)
    return sink.digest.hexdigest()


class _HashSink:
    def __init__(self) -> None:
        self.digest = hashlib.sha256()

    def write(self, data: bytes) -> int:
        self.digest.update(data)
        return len(data)


def _scan(directory: Path, root: Path) -> Iterator[Entry]:
    for path in sorted(directory.iterdir()):
        if path.name in SKIPPED:
            continue
        header = _header(path, root)
        if header is not None:
            yield Entry(path, header)
            if header.isdir():
                yield from _scan(path, root)


def _header(path: Path, root: Path) -> tarfile.TarInfo | None:
    """Describe ``path`` by name, kind and content and nothing else; None for sockets and such."""
    found = path.lstat()
    header = tarfile.TarInfo(path.relative_to(root).as_posix())
    header.mode = 0o755 if found.st_mode & stat.S_IXUSR else 0o644
    if stat.S_ISREG(found.st_mode):
        header.size = found.st_size
    elif stat.S_ISDIR(found.st_mode):
        header.type = tarfile.DIRTYPE
    elif stat.S_ISLNK(found.st_mode):
        header.type, header.linkname, header.mode = tarfile.SYMTYPE, str(path.readlink()), 0o777
    else:
        return None
    return header


def _header_blocks(header: tarfile.TarInfo) -> bytes:
    return header.tobuf(tarfile.GNU_FORMAT, tarfile.ENCODING, "surrogateescape")


def _content(entry: Entry) -> Iterator[bytes]:
    """Give the file's bytes and its padding, and insist on the size that the header promised."""
    left = entry.header.size
    with entry.path.open("rb") as file:
        while block := file.read(min(left + 1, CHUNK_SIZE)):
            left -= len(block)
            if left < 0:
                raise TreeChangedError(str(entry.path))
            yield block
    if left:
        raise TreeChangedError(str(entry.path))
    yield bytes(_padded(entry.header.size) - entry.header.size)


def _padded(size: int, block: int = tarfile.BLOCKSIZE) -> int:
    return -(-size // block) * block


def _rechunk(stream: Iterable[bytes], size: int) -> Iterator[bytes]:
    buffer = bytearray()
    for piece in stream:
        buffer += piece
        while len(buffer) >= size:
            yield bytes(buffer[:size])
            del buffer[:size]
    if buffer:
        yield bytes(buffer)
