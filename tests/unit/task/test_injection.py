"""Where a task's function gets its context, and what is left for its callers."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

import pytest

from celery_lease.task.current import private_context
from celery_lease.task.injection import NOTHING, Injection

if TYPE_CHECKING:
    from collections.abc import Callable

IMPORTS = """
import celery_lease
from celery_lease import ToolContext
from typing import Annotated, Any, Optional
Alias = ToolContext
"""
FUTURE = "from __future__ import annotations"


@pytest.mark.parametrize("future", ["", FUTURE], ids=["evaluated", "postponed"])
@pytest.mark.parametrize(
    "parameter",
    [
        "*, context",
        "*, lease: ToolContext",
        "*, lease: 'ToolContext'",
        "*, lease: Alias",
        "*, lease: celery_lease.ToolContext",
        "*, lease: ToolContext | None = None",
        "*, lease: Optional['ToolContext'] = None",
        "*, lease: Annotated[ToolContext, 'held']",
        "lease: ToolContext",
        "lease: ToolContext, /",
    ],
)
def test_a_context_is_found_however_it_is_asked_for(parameter: str, future: str) -> None:
    """The parameter is found and is the only one taken out of the public signature."""
    function = _defined(f"def f(path: str, {parameter}): ...", future + IMPORTS)
    injection = Injection.of(function, skip_first=False)
    assert injection.name in {"lease", "context"}
    assert list(injection.public.parameters) == ["path"]


def test_a_name_imported_for_type_checkers_only_is_found() -> None:
    """ToolContext under TYPE_CHECKING is no global of the module, and is meant all the same."""
    function = _defined("def f(path, *, lease: ToolContext): ...")
    assert Injection.of(function, skip_first=False).name == "lease"


def test_somebody_elses_class_of_the_same_name_is_left_alone() -> None:
    """The author's own globals decide what ToolContext means."""
    function = _defined(
        "def f(path, *, lease: ToolContext): ...", FUTURE + "\nclass ToolContext: ..."
    )
    assert Injection.of(function, skip_first=False).name is None


@pytest.mark.parametrize("future", ["", FUTURE], ids=["evaluated", "postponed"])
@pytest.mark.parametrize("annotation", ["dict", "'dict[str, int]'", "'Any'", "'Unknown'", "None"])
def test_a_context_of_the_authors_own_is_an_argument(annotation: str, future: str) -> None:
    """``context: dict`` is what callers pass: only an unannotated one is ours by its name.

    Failed before with: ``'context' == None``.
    """
    function = _defined(f"def f(path, *, context: {annotation}): ...", future + IMPORTS)
    injection = Injection.of(function, skip_first=False)
    assert injection.name is None
    assert list(injection.public.parameters) == ["path", "context"]


@pytest.mark.parametrize("annotation", ["lease.ToolContext", "lease.ToolContext | None"])
def test_a_context_under_a_name_that_only_type_checkers_know_is_found(annotation: str) -> None:
    """``import celery_lease as lease`` under TYPE_CHECKING."""
    function = _defined(f"def f(path, *, context: {annotation}): ...")
    assert Injection.of(function, skip_first=False).name == "context"


@pytest.mark.parametrize(
    "source",
    [
        "def f(context): ...",
        "def f(hook: 'Callable[[ToolContext], None]'): ...",
        "def f(contexts: 'list[ToolContext]'): ...",
        "def f(*contexts: ToolContext): ...",
        "def f(**contexts: ToolContext): ...",
        "def f(x: 'not an expression'): ...",
    ],
)
def test_a_parameter_that_only_looks_alike_is_an_argument(source: str) -> None:
    """Neither a positional name, nor a container of contexts, nor variadics are filled."""
    function = _defined(source)
    injection = Injection.of(function, skip_first=False)
    assert injection.name is None
    assert injection.public == inspect.signature(function)


def test_an_annotation_counts_for_more_than_a_name() -> None:
    """With both there, ``context`` is an argument of the author's own."""
    function = _defined("def f(*, context: dict, lease: ToolContext): ...")
    injection = Injection.of(function, skip_first=False)
    assert injection.name == "lease"
    assert list(injection.public.parameters) == ["context"]


@pytest.mark.parametrize(
    ("source", "args", "kwargs"),
    [
        ("def f(context: ToolContext, x, y=2): return context, x, y", (1,), {}),
        ("def f(x, context: ToolContext, y=2): return context, x, y", (1,), {}),
        ("def f(x, context: ToolContext, y=2): return context, x, y", (1, 2), {}),
        ("def f(x, context: ToolContext, y=2): return context, x, y", (1,), {"y": 2}),
        ("def f(x, context: ToolContext, y=2): return context, x, y", (), {"x": 1}),
        ("def f(x, context: ToolContext, /, y=2): return context, x, y", (1, 2), {}),
        ("def f(x, y=2, *, context: ToolContext): return context, x, y", (1, 2), {}),
        ("def f(x, y=2, *, context): return context, x, y", (), {"x": 1, "y": 2}),
        ("def f(*args, context): return context, *args", (1, 2), {}),
    ],
)
def test_arguments_keep_their_places_around_the_context(
    source: str, args: tuple[int, ...], kwargs: dict[str, int]
) -> None:
    """Whatever the parameter's kind and place, callers count without it."""
    function, context = _defined(source), private_context()
    injection = Injection.of(function, skip_first=False)
    filled, named = injection.arguments(args, kwargs, context)
    assert function(*filled, **named) == (context, 1, 2)
    injection.public.bind(*args, **kwargs)


def test_a_function_without_a_context_gets_its_arguments_untouched() -> None:
    """Nothing is added for a function that takes anything."""
    injection = Injection.of(lambda *args, **kwargs: (args, kwargs), skip_first=False)
    assert injection.arguments((1,), {"context": 2}, private_context()) == ((1,), {"context": 2})


def test_callers_cannot_fill_the_contexts_place() -> None:
    """An argument of that name, as from a foreign message, is refused as an unexpected one."""
    injection = Injection.of(_defined("def f(x, *, context): ..."), skip_first=False)
    with pytest.raises(TypeError, match="'context'"):
        injection.arguments(("a",), {"context": "forged"}, private_context())


def test_the_task_itself_is_neither_context_nor_argument() -> None:
    """The first parameter of a bound task is left out of the public signature."""
    function = _defined("def f(context, x, *, lease: ToolContext): ...")
    injection = Injection.of(function, skip_first=True)
    assert list(injection.public.parameters) == ["x"]


def test_a_context_given_on_purpose_is_seen() -> None:
    """By keyword whatever it is, by position when it is a context."""
    context = private_context()
    positional = Injection.of(_defined("def f(x, c: ToolContext): ..."), skip_first=False)
    assert positional.given((1, context), {}) is context
    assert positional.given((1,), {"c": context}) is context
    assert positional.given((1,), {}) is NOTHING
    assert positional.given((1, 2), {}) is NOTHING
    by_keyword = Injection.of(_defined("def f(x, *, context): ..."), skip_first=False)
    assert by_keyword.given((1,), {"context": None}) is None


def test_a_wrapped_function_is_judged_by_what_it_wraps() -> None:
    """A decorator below the task's own that uses functools.wraps hides nothing."""
    function = _defined("def f(path, *, lease: ToolContext): ...")

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    assert Injection.of(wrapper, skip_first=False).name == "lease"


def _defined(source: str, head: str = FUTURE) -> Callable[..., Any]:
    """Return the function ``f`` of a module."""
    names: dict[str, Any] = {}
    exec(f"{head}\n{source}", names)  # noqa: S102
    function: Callable[..., Any] = names["f"]
    return function
