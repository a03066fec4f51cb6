"""The file of a beat board for task processes that are not forks: they open it by its path.

Only its user may open it. Its worker holds a lock on it for as long as it lives, so that a later
worker can recognize the file of one that was killed, and remove it; cleaners of old temporary files
leave a locked file alone, too.
"""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
from contextlib import suppress
from pathlib import Path

PREFIX = "celery-lease-board-"


def create() -> tuple[int, str]:
    """Create a file with mode 0600 in the directory for temporary files, and lock it."""
    directory = Path(tempfile.gettempdir())
    for each in directory.glob(f"{PREFIX}*"):
        with suppress(OSError):  # another user's, in use, or removed meanwhile
            _remove_if_left(each)
    while True:
        fd, path = tempfile.mkstemp(prefix=PREFIX, dir=directory)
        _lock(fd)
        if os.fstat(fd).st_nlink:
            return fd, path
        os.close(fd)  # another worker removed it before it was locked


def mapped(address: str, least: int) -> mmap.mmap:
    """Map the file at *address*, of at least *least* bytes, into this process's memory.

    Raises:
        OSError: There is no such file, or this process may not open it.
    """
    path = Path(address)
    if not path.is_absolute():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), address)
    with path.open("r+b") as file:
        size = os.fstat(file.fileno()).st_size
        if size < least:
            raise FileNotFoundError(address)
        return mmap.mmap(file.fileno(), size)


def remove(fd: int, path: str) -> None:
    """Remove a file of :func:`create`."""
    with suppress(OSError):
        Path(path).unlink()
    os.close(fd)


def _remove_if_left(path: Path) -> None:
    fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    try:
        _lock(fd, wait=False)
        path.unlink()
    finally:
        os.close(fd)


def _lock(fd: int, *, wait: bool = True) -> None:
    """Lock a file; the lock lasts until all processes that have it open have closed it.

    Raises:
        BlockingIOError: It is locked, and *wait* is False.
    """
    import fcntl  # noqa: PLC0415  (not on all platforms on which tasks are sent)

    fcntl.flock(fd, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
