"""A worker's app to look at in a browser: ``celery -A harness.app_page worker``."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING, Any

from celery_lease import LeasedTask, ToolContext
from harness.app import note
from harness.setup import Setup

if TYPE_CHECKING:
    from celery import Task

app = Setup.from_env().app("video")
#: What somebody may call a task, and have it say, who means no good.
HOSTILE = "<script>document.title='taken'</script>"
SAYS = "\"'><img src=x onerror=\"document.title='taken'\">"


def _work(context: ToolContext, seconds: float, said: str) -> None:
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        context.beat(round(seconds - left, 1), seconds, said)
        time.sleep(0.05)


@app.task(name="video.transcode", base=LeasedTask, bind=True)
def transcode(
    self: Task[Any, Any], seconds: float, film: str = "film", *, context: ToolContext
) -> None:
    """Work, and say how far it is."""
    note(self, "start", deliveries=context.deliveries)
    _work(context, seconds, f"encoding {film}")
    note(self, "end")


@app.task(
    name="video.render", base=LeasedTask, bind=True, lease_interruptible=True, lease_key="screen"
)
def render(self: Task[Any, Any], seconds: float, *, context: ToolContext) -> None:
    """Work until handed over; the next run is short."""
    note(self, "start", deliveries=context.deliveries)
    _work(context, seconds if context.deliveries == 1 else 0, "rendering")
    note(self, "end")


@app.task(name=HOSTILE, base=LeasedTask, bind=True)
def hostile(self: Task[Any, Any], seconds: float, *, context: ToolContext) -> None:
    """Work, and say what it should not."""
    note(self, "start", deliveries=context.deliveries)
    _work(context, seconds, SAYS)


@app.task(name="video.publish", base=LeasedTask, bind=True, lease_max_deliveries=1)
def publish(self: Task[Any, Any], *, context: ToolContext) -> None:
    """End its own process the first time it is sent, and each time after that but the last."""
    note(self, "start", deliveries=context.deliveries)
    context.beat(1, 3, "uploading")
    os.kill(os.getpid(), signal.SIGKILL)
