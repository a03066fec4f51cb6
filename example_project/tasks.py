"""The leased task of the example.

Three lines of it are about leases: the decorator, the context that it injects, and ``track``,
which beats for every chunk. What a delivery may do to the files is decided by its fencing token, in
:mod:`example_project.jobdir`: so a task stays right when its holder was only *thought* dead.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from celery import current_task

from celery_lease import LeaseLost, ShutdownRequested, ToolContext, leased_task
from example_project.jobdir import Holder, JobDir, Progress, SupersededError
from example_project.packer import ArchiveWriter, Plan
from example_project.sealing import START, add

#: A checkpoint is stored so often, in chunks: so many may be done twice after a handover.
CHECKPOINT_EVERY = 5


@leased_task
def pack(job: str, tree: str, *, seconds: float = 0.0, context: ToolContext) -> dict[str, Any]:
    """Pack the directory ``tree`` into the job's directory and return the manifest.

    Args:
        job: A directory, made if need be; its files are described in :mod:`example_project.jobdir`.
        tree: The directory to pack.
        seconds: Demo only: take at least this long, spread evenly over the chunks, so that there is
            something to watch and time to kill a worker.
        context: The lease; injected.

    Raises:
        LeaseLost: The lease ran out; the job is run elsewhere.
        SupersededError: A newer holder has the job, so this one changed nothing.
    """
    directory, holder = JobDir(Path(job)), _holder(context)
    directory.path.mkdir(exist_ok=True)
    done_before = directory.manifest()
    if done_before is not None:
        return done_before  # finished, but the worker died before it could acknowledge
    try:
        with directory.fenced(holder.token):
            directory.log("start", holder)
        checksum = _write_archive(directory, holder, Plan.of(Path(tree)), seconds, context)
        return _publish(directory, holder, checksum)
    except SupersededError as error:
        directory.log("refused", holder, str(error))
        raise
    except LeaseLost as error:
        directory.log("lost", holder, str(error))
        raise


@leased_task(lease_interruptible=True)
def seal(job: str, tree: str, *, seconds: float = 0.0, context: ToolContext) -> dict[str, Any]:
    """Seal the directory ``tree``, and go on from the checkpoint when the worker is told to stop.

    Args:
        job: As for :func:`pack`.
        tree: The directory to seal.
        seconds: As for :func:`pack`; what was done before the checkpoint takes no time again.
        context: The lease; injected.

    Raises:
        ShutdownRequested: The worker stops; the message went back, and another one goes on.
        LeaseLost: The lease ran out; the job is run elsewhere.
        SupersededError: A newer holder has the job, so this one changed nothing.
    """
    directory, holder = JobDir(Path(job)), _holder(context)
    directory.path.mkdir(exist_ok=True)
    state: dict[str, Any] = context.restored or {"done": 0, "seal": START}
    with directory.fenced(holder.token):
        directory.log("start", holder, str(state["done"]))
    try:
        found = _seal_on(
            directory, holder, Plan.of(Path(tree)), state, seconds=seconds, context=context
        )
    except ShutdownRequested:
        directory.log("handed over", holder, str(state["done"]))
        raise
    directory.part(holder.token).write_text(found)
    return _publish(directory, holder, found)


def _seal_on(
    directory: JobDir,
    holder: Holder,
    plan: Plan,
    state: dict[str, Any],
    *,
    seconds: float,
    context: ToolContext,
) -> str:
    total, before, started = plan.total, state["done"], time.monotonic()
    for number, chunk in enumerate(plan.chunks()):
        if number < before:  # sealed by an earlier holder; reading it again takes its time, too
            context.beat(number, total)
            continue
        state.update(done=state["done"] + 1, seal=add(state["seal"], chunk))
        context.beat(state["done"], total)
        if state["done"] % CHECKPOINT_EVERY == 0:
            context.checkpoint(state)
        directory.report(_progress(holder, state["done"], total, context.remaining))
        _keep_pace(started + seconds * (state["done"] - before) / total)
    return str(state["seal"])


def _write_archive(
    directory: JobDir, holder: Holder, plan: Plan, seconds: float, context: ToolContext
) -> str:
    total, started = plan.total, time.monotonic()
    with directory.part(holder.token).open("wb") as target:
        archive = ArchiveWriter(target)
        for done, chunk in enumerate(context.track(plan.chunks(), total=total), start=1):
            archive.write(chunk)
            directory.report(_progress(holder, done, total, context.remaining))
            _keep_pace(started + seconds * done / total)
        return archive.finish()


def _publish(directory: JobDir, holder: Holder, checksum: str) -> dict[str, Any]:
    manifest = {
        "sha256": checksum,
        "token": holder.token,
        "deliveries": holder.deliveries,
        "worker": holder.worker,
        "bytes": directory.part(holder.token).stat().st_size,
    }
    with directory.fenced(holder.token):
        directory.publish(holder, manifest)
    return manifest


def _holder(context: ToolContext) -> Holder:
    request = current_task.request
    return Holder(
        task_id=request.id or "",
        worker=request.hostname or "",
        worker_id=str(context.worker_id),
        pid=os.getpid(),
        token=context.fencing_token or 0,  # none where there is no lease, as in a plain call
        deliveries=context.deliveries,
    )


def _progress(holder: Holder, done: int, total: int, remaining: float | None) -> Progress:
    until = None if remaining is None else time.time() + remaining
    return Progress(holder=holder, done=done, total=total, lease_until=until)


def _keep_pace(not_before: float) -> None:
    time.sleep(max(0.0, not_before - time.monotonic()))
