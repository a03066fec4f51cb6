"""The long work. ``leased_task`` is to it what ``shared_task`` is to a plain task."""

from __future__ import annotations

import hashlib
from pathlib import Path

from celery_lease import ToolContext, leased_task

CHUNK = 1 << 20


@leased_task
def checksum(path: str, *, context: ToolContext) -> str:
    """Return the SHA-256 of a file; a beat for each MiB, with the progress in bytes."""
    digest, size = hashlib.sha256(), Path(path).stat().st_size
    with Path(path).open("rb") as video:
        while chunk := video.read(CHUNK):
            digest.update(chunk)
            context.beat(video.tell(), size)
    return digest.hexdigest()
