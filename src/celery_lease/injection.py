"""How a task's function is given its context without its callers knowing of it.

Decided once, when the task is declared: a parameter annotated ``ToolContext``, else a keyword-only
one named ``context``. Whatever is left of the signature is the task's public one.
"""

from __future__ import annotations

import inspect
import sys
from collections import ChainMap
from dataclasses import dataclass
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Union, get_args, get_origin

from celery_lease.context import ToolContext

if TYPE_CHECKING:
    from collections.abc import Callable

CONTEXT_NAME = "context"

#: A call says nothing about the context; None may be somebody's own choice.
NOTHING = inspect.Parameter.empty

#: What an annotation may name although it was imported for type checkers only.
_KNOWN = {"ToolContext": ToolContext, "celery_lease": sys.modules["celery_lease"]}


@dataclass(frozen=True, slots=True)
class Injection:
    """Where a function wants its context, if it wants one."""

    name: str | None  #: the parameter; None: nowhere
    position: int  #: its place among the positional parameters; -1: by keyword only
    public: inspect.Signature  #: the signature without it, and without the task itself

    @classmethod
    def of(cls, function: Callable[..., Any], *, skip_first: bool) -> Injection:
        """Find the parameter that takes the context.

        Args:
            function: The task's function, as its author wrote it.
            skip_first: The first parameter is the task itself.
        """
        signature = inspect.signature(function)
        parameters = list(signature.parameters.values())[skip_first:]
        wanted = _wanted(parameters, function)
        public = signature.replace(parameters=[each for each in parameters if each is not wanted])
        if wanted is None:
            return cls(None, -1, public)
        by_keyword = wanted.kind is wanted.KEYWORD_ONLY
        return cls(wanted.name, -1 if by_keyword else parameters.index(wanted), public)

    def given(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return what a direct call passes in the context's place, as tests do, or ``NOTHING``."""
        if self.name is None:
            return NOTHING
        if 0 <= self.position < len(args) and isinstance(args[self.position], ToolContext):
            return args[self.position]
        return kwargs.get(self.name, NOTHING)

    def arguments(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], context: ToolContext
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments with the context in its place.

        Raises:
            TypeError: There is something in that place, which is not for callers to fill.
        """
        if self.name is None:
            return args, kwargs
        if self.name in kwargs:
            raise TypeError(f"{self.name!r} is the task's context, not an argument of its callers")
        if 0 <= self.position <= len(args):
            return (*args[: self.position], context, *args[self.position :]), kwargs
        return args, {**kwargs, self.name: context}


def _wanted(
    parameters: list[inspect.Parameter], function: Callable[..., Any]
) -> inspect.Parameter | None:
    """Return the parameter for the context; an annotation counts for more than a name."""
    for each in parameters:
        variadic = each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
        if not variadic and _is_context(_evaluated(each.annotation, function)):
            return each
    for each in parameters:
        if each.kind is each.KEYWORD_ONLY and each.name == CONTEXT_NAME:
            return each
    return None


def _is_context(annotation: object) -> bool:
    """Recognise ToolContext, also as one of several alternatives or with remarks on it."""
    if get_origin(annotation) is Annotated:
        return _is_context(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return any(map(_is_context, get_args(annotation)))
    return _evaluated(annotation) is ToolContext


def _evaluated(annotation: object, function: Callable[..., Any] | None = None) -> object:
    """Return what an annotation means; None if it names something unknown here.

    All are strings under ``from __future__ import annotations``, and need the author's names.
    """
    text = getattr(annotation, "__forward_arg__", annotation)
    if not isinstance(text, str):
        return annotation
    names = getattr(inspect.unwrap(function), "__globals__", {}) if function else {}
    try:
        return eval(text, {}, ChainMap(names, _KNOWN))  # noqa: S307  (the author's own source)
    except Exception:  # noqa: BLE001  (an expression of whatever kind, never meant to be run)
        return None
