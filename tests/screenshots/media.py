"""The app on the pictures: long tasks of a site with videos, one of which nobody taught to beat."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from celery_lease.task.task import LeasedTask
from harness.setup import Setup

if TYPE_CHECKING:
    from celery_lease import ToolContext

app = Setup.from_env().app("media")


@app.task(name="media.transcode", base=LeasedTask)
def transcode(path: str, chunks: int = 40, pace: float = 0.5, *, context: ToolContext) -> str:
    """Encode chunk by chunk."""
    for chunk in range(chunks):
        time.sleep(pace)
        context.beat(chunk + 1, chunks, f"chunk {chunk + 1} of {path}")
    return path


@app.task(name="media.index", base=LeasedTask)
def index(folder: str, files: int = 200, pace: float = 0.2, *, context: ToolContext) -> str:
    """Read file by file."""
    for _ in context.track(range(files), total=files):
        time.sleep(pace)
    return folder


@app.task(name="media.report", base=LeasedTask)
def report(year: int) -> int:
    """Add up a year, without a beat."""
    return year
