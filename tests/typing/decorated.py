"""What type checkers make of leased tasks. Checked by mypy and pyright, never run."""

# ruff: noqa: ARG001, ARG002, D101, F401

from __future__ import annotations

from typing import TYPE_CHECKING, Any, assert_type

from celery_lease import LeasedTask, ToolContext, current_context, leased_task

if TYPE_CHECKING:
    from celery import Task
    from celery.canvas import Signature
    from celery.result import AsyncResult


@leased_task
def without(path: str, size: int = 1) -> bytes:
    return path.encode() * size


assert_type(without("a", 2), bytes)
assert_type(without.delay("a", size=2), "AsyncResult[bytes]")
assert_type(without.s("a"), "Signature[bytes]")
without.delay(1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
without.delay()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


@leased_task(bind=True, lease_extension=120, max_retries=3)
def bound(self: Task[Any, Any], path: str) -> bytes:
    raise self.retry()


assert_type(bound.delay("a"), "AsyncResult[bytes]")
bound.delay("a", "b")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


@leased_task
def simple(path: str, *, context: ToolContext) -> str:
    context.beat(1, 2, "note")
    return path


@leased_task(lease_extension=120)
def transcode(path: str, quality: int, *, context: ToolContext) -> str:
    for chunk in context.track(["a", "b"]):
        assert_type(chunk, str)
    assert_type(context.tool(len, path), int)
    return path


# The context is nobody's argument, and the result is known.
assert_type(simple("a"), str)
assert_type(simple.delay("a"), "AsyncResult[str]")
assert_type(transcode.delay("a", 1).get(), str)


class Own(LeasedTask):
    lease_extension = 60

    def run(self, path: str, *, context: ToolContext) -> str:
        return path


assert_type(current_context(), ToolContext)
