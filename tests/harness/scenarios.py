"""Stories that take long and do not touch each other: played at once, asked for one by one."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

T = TypeVar("T")


class Closing(Protocol):
    """A stage for one scenario."""

    def close(self) -> object:
        """End what plays there."""
        ...


class Scenarios:
    """The scenarios' outcomes, as they become known."""

    def __init__(self, futures: dict[Callable[..., object], Future[object]]) -> None:
        self._futures = futures

    def outcome(self, scenario: Callable[..., T]) -> T:
        """Return what a scenario returned, once it has; raise what it raised."""
        return cast("T", self._futures[scenario].result())


@contextmanager
def playing(stages: Mapping[Callable[[Any], object], Closing], at_once: int) -> Iterator[Scenarios]:
    """Play each scenario on its stage, so many at once; close the stages at the end."""
    with ThreadPoolExecutor(at_once) as pool:
        yield Scenarios({each: pool.submit(each, stage) for each, stage in stages.items()})
    for stage in stages.values():
        stage.close()
