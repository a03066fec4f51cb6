"""Tests of one module that mostly wait, played at the same time, each on a stage of its own.

The first one begins all that were chosen; each then reads what came of its own. Run with
``--dist loadfile``: they are played by the process that reads them.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

import pytest

from harness.shell import Commands

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from pathlib import Path

    #: Opens a stage in a directory of its own.
    Make = Callable[["Stages[Stage]", Path], AbstractContextManager["Stage"]]

Stage = TypeVar("Stage")

#: Tests of one module that are played at the same time.
MOST = 5


class Stages(Generic[Stage]):
    """The tests of one module that were begun; a fixture of the module, named ``stages``."""

    def __init__(self, directories: pytest.TempPathFactory, make: Make[Stage]) -> None:
        self.commands = Commands()  #: of the tests' threads, run by the main one
        self._directories = directories
        self._make = make
        self._threads = ThreadPoolExecutor(MOST)
        self._begun: dict[str, Future[None]] = {}

    def open(self, directory: Path) -> AbstractContextManager[Stage]:
        """Return a stage for a test that is played alone."""
        return self._make(self, directory)

    def play(self, test: pytest.Function) -> None:
        """Return once a test is over, or raise what it raised."""
        if test.nodeid not in self._begun:
            for each in test.session.items:
                if each.path == test.path and isinstance(each, pytest.Function) and _scenario(each):
                    self._begun[each.nodeid] = self._threads.submit(self._play, each)
        over = self._begun.pop(test.nodeid)
        self.commands.serve(over.done)
        over.result()

    def _play(self, test: pytest.Function) -> None:
        case = test.callspec.params if hasattr(test, "callspec") else {}
        with self.open(self._directories.mktemp("stage")) as stage:
            _scenario(test)(stage, **case)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown(cancel_futures=True)


def _scenario(test: pytest.Function) -> Any:
    return getattr(test.function, "scenario", None)


def at_once(scenario: Callable[..., None]) -> Callable[..., None]:
    """Make a test of a scenario, whose first argument is a stage and the others parameters."""

    @functools.wraps(scenario)
    def test(stages: Stages[Any], request: pytest.FixtureRequest, **_: object) -> None:
        stages.play(request.node)

    mine = itertools.islice(inspect.signature(test, follow_wrapped=False).parameters.values(), 2)
    cases = itertools.islice(inspect.signature(scenario).parameters.values(), 1, None)
    keyword = inspect.Parameter.KEYWORD_ONLY
    test.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [*mine, *(each.replace(kind=keyword) for each in cases)]
    )
    test.scenario = scenario  # type: ignore[attr-defined]
    return test
