"""The agent's loop as a leased task.

Each tool call is a step: its name shows in the progress, and it beats before and after. After each
call the transcript is saved. So when the worker stops, or dies, another one goes on with the call
that was not finished, and no finished one is made again.
"""

from __future__ import annotations

from typing import Any

from celery import Celery

from celery_lease import ToolContext, leased_task
from examples.agent.model import decide
from examples.agent.tools import TOOLS

app = Celery("examples.agent.tasks")
app.conf.update(
    broker_url="redis://127.0.0.1:6379/0",
    result_backend="redis://127.0.0.1:6379/0",
    task_default_queue="agent",
    broker_connection_retry_on_startup=True,
    lease_extension=3,  # short, to see it at work
)
app.set_default()

#: Seconds that the model may take for its answer; it cannot beat meanwhile.
THINKING = 120


@leased_task(lease_interruptible=True)
def run_agent(directory: str, *, context: ToolContext) -> list[dict[str, Any]]:
    """Call tools until the model has what it wants; return the transcript."""
    transcript: list[dict[str, Any]] = context.restored or []
    while True:
        with context.quiet(THINKING):
            call = decide(directory, transcript)
        if call is None:
            return transcript
        with context.step(call.tool):
            outcome = TOOLS[call.tool](**call.arguments)
        entry = {"tool": call.tool, "arguments": call.arguments, "outcome": outcome}
        transcript.append({**entry, "worker": context.worker_id})
        context.checkpoint(transcript)
