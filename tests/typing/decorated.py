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
assert_type(without.apply_async(("a",), {"size": 2}, countdown=1), "AsyncResult[bytes]")
assert_type(without.s("a"), "Signature[bytes]")
assert_type(without.si("a", size=2), "Signature[bytes]")
without(1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
without.delay(1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
without.delay()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
without.si(1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


# A context that comes first is taken out of the parameters; the others stay as they are.


@leased_task
def encode(context: ToolContext, path: str, quality: int = 1) -> bytes:
    return path.encode() * quality


assert_type(encode("a", quality=2), bytes)
assert_type(encode.delay("a", 2), "AsyncResult[bytes]")
assert_type(encode.delay(path="a").get(), bytes)
assert_type(encode.apply_async(("a",), lease_extension=60), "AsyncResult[bytes]")
encode.apply_async(("a",), lease_extension="60")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
assert_type(encode.s("a"), "Signature[bytes]")
assert_type(encode.si("a", 2), "Signature[bytes]")
encode(1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
encode.delay(1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
encode.delay("a", size=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
encode.delay()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
encode.si(1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


@leased_task(lease_extension=120)
def encode_with_options(context: ToolContext, path: str) -> bytes:
    return path.encode()


assert_type(encode_with_options.delay("a"), "AsyncResult[bytes]")
encode_with_options.delay(1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


@leased_task(bind=True)
def encode_bound(self: LeasedTask, context: ToolContext, path: str) -> bytes:
    return path.encode()


assert_type(encode_bound.delay("a"), "AsyncResult[bytes]")
encode_bound.delay(1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
encode_bound.delay("a", "b")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


@leased_task
def anything(what: Any, size: int) -> bytes:
    return b""


@leased_task
def any_object(what: object, size: int) -> bytes:
    return b""


@leased_task
def second(path: str, context: ToolContext) -> bytes:
    return b""


# What may be a context is none unless it is said: no call is refused that works. (Where Any makes
# several overloads match, mypy forgets the result, too; pyright knows it.)
anything.delay(1, 2)
assert_type(any_object.delay(1, 2), "AsyncResult[bytes]")
assert_type(second.delay("a"), "AsyncResult[bytes]")


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
    for chunk in context.iterate(lambda last: [f"{last}"], cursor=lambda each: each.upper()):
        assert_type(chunk, str)
    for number in context.iterate([1, 2], name="numbers"):
        assert_type(number, int)
    assert_type(context.tool(len, path), int)
    return path


# The context is nobody's argument, and the result is known.
assert_type(simple("a"), str)
assert_type(simple.delay("a"), "AsyncResult[str]")
assert_type(simple.apply_async(("a",)), "AsyncResult[str]")
assert_type(simple.s("a"), "Signature[str]")
assert_type(transcode.delay("a", 1).get(), str)


class Own(LeasedTask):
    lease_extension = 60

    def run(self, path: str, *, context: ToolContext) -> str:
        return path


assert_type(current_context(), ToolContext)


# Options are checked by name and by type, Celery's own among them; those of calls, too.


@leased_task(
    name="options",
    base=Own,
    lease_mode="daemon",
    lease_on_lost="continue",
    lease_max_duration=3600,
    lease_key="options:{path}",
    lease_key_limit=2,
    lease_on_busy="replace",
    lease_watchdog_threshold=None,
    autoretry_for=(OSError,),
    retry_backoff=True,
    time_limit=60,
    queue="long",
    ignore_result=True,
)
def options(path: str) -> None: ...


leased_task(lease_extensoin=60)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
leased_task(lease_extension="60")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
leased_task(bind=True, lease_mode="beats")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
leased_task(bind=True, lease_reaper_interval=1)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]


def either(flag: bool) -> None:
    @leased_task(bind=flag)
    def work(*path: str) -> bytes:
        return b""

    assert_type(work.delay("a"), "AsyncResult[bytes]")


@leased_task(bind=True)
def retried(self: LeasedTask, context: ToolContext, path: str) -> bytes:
    if self.request.retries:
        raise self.retry(countdown=1)
    return path.encode()


def key_of(path: str) -> str:
    """Return the key of a call."""
    return f"x:{path}"


assert_type(retried.s("a"), "Signature[bytes]")
retried.apply_async(("a",), lease_mode="beats")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
retried.apply_async(("a",), lease_key=key_of, lease_on_busy="drop")
retried.apply_async(("a",), lease_on_busy="skip")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


@leased_task(bind=True, lease_extension=60)
def bound_simple(self: LeasedTask, path: str, *, context: ToolContext) -> str:
    return path


assert_type(bound_simple.delay("a"), "AsyncResult[str]")


@leased_task(bind=True)
def bound_alone(self: LeasedTask) -> int:
    return 1


assert_type(bound_alone.delay(), "AsyncResult[int]")
bound_alone.delay(1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
