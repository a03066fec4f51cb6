"""Makes several calls at the same time: SQS takes ten leases in each.

One thread for each few calls, and no longer than for them. No thread is left to be forked, to be
waited for at exit, or to be shared by drivers. Under gevent and eventlet the threads are greenlets.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

T = TypeVar("T")

#: The most calls under way at once.
AT_ONCE = 8
#: The number of calls that justifies a thread.
WORTH = 2


def do_all(do: Callable[[T], None], pieces: Iterable[T]) -> None:
    """Call *do* for each of *pieces*, several at once, and return when all are done.

    The first call is made alone: its result, such as a failure or an open connection, holds for the
    others. The caller takes part, and makes all calls if no thread can be started.
    """
    left = deque(pieces)  # all threads take from it: its operations are atomic

    def take() -> None:
        with suppress(IndexError):
            while True:
                do(left.popleft())

    if left:
        do(left.popleft())
    helpers = _started(take, min(AT_ONCE, (len(left) + 1) // WORTH) - 1)
    try:
        take()
    finally:
        for each in helpers:
            each.join()


def _started(take: Callable[[], None], count: int) -> list[threading.Thread]:
    helpers = []
    with suppress(RuntimeError):  # no thread can be started, as at the interpreter's end
        for number in range(count):
            name = f"celery-lease-sqs-{number + 1}"
            helper = threading.Thread(target=take, name=name, daemon=True)
            helper.start()
            helpers.append(helper)
    return helpers
