"""Passes the context to a task's function, hidden from the function's callers.

The parameter is found once, when the task is declared: one annotated ``ToolContext``, else a
keyword-only one named ``context`` without an annotation; with another annotation it is the author's
own. The rest of the signature is the task's public one.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections import ChainMap
from dataclasses import dataclass
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Union, get_args, get_origin

from celery_lease.task.context import ToolContext

if TYPE_CHECKING:
    from collections.abc import Callable

CONTEXT_NAME = "context"

#: The call passes no context; None may be the caller's choice.
NOTHING = inspect.Parameter.empty

#: Names in annotations that may have been imported for type checkers only.
_KNOWN = {"ToolContext": ToolContext, "celery_lease": sys.modules["celery_lease"]}
#: ToolContext, or None, under any module's name.
_QUALIFIED = re.compile(r"(\w+\.)+ToolContext(\s*\|\s*None)?")


@dataclass(frozen=True, slots=True)
class Injection:
    """The parameter of a function that takes the context."""

    name: str | None  #: the parameter; None: there is none
    position: int  #: its index among the positional parameters; -1: keyword only
    public: inspect.Signature  #: the signature without the context and without the task itself

    @classmethod
    def of(cls, function: Callable[..., Any], *, skip_first: bool) -> Injection:
        """Find the parameter that takes the context.

        Args:
            function: The task's function, as its author wrote it.
            skip_first: Whether the first parameter is the task itself.
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
        """Return the context that a direct call passes, as tests do, or ``NOTHING``."""
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
            TypeError: A caller has passed a value for the context.
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
    """Return the parameter for the context; an annotation has precedence over a name."""
    for each in parameters:
        variadic = each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
        if not variadic and _is_context(_evaluated(each.annotation, function)):
            return each
    for each in parameters:
        if each.kind is each.KEYWORD_ONLY and each.name == CONTEXT_NAME:
            return each if _may_be_context(each.annotation, function) else None
    return None


def _may_be_context(annotation: object, function: Callable[..., Any]) -> bool:
    """Whether a parameter with the context's name takes it: the annotation is missing or fits."""
    if annotation is NOTHING:
        return True
    text = getattr(annotation, "__forward_arg__", annotation)
    # Under the name of a module that was imported for type checkers only.
    unknown = isinstance(text, str) and _evaluated(text, function) is None
    return unknown and _QUALIFIED.fullmatch(str(text)) is not None


def _is_context(annotation: object) -> bool:
    """Whether an annotation is ToolContext, also in a union or in Annotated."""
    if get_origin(annotation) is Annotated:
        return _is_context(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return any(map(_is_context, get_args(annotation)))
    return _evaluated(annotation) is ToolContext


def _evaluated(annotation: object, function: Callable[..., Any] | None = None) -> object:
    """Return the value of an annotation; None if it contains an unknown name.

    All annotations are strings under ``from __future__ import annotations``, and need the author's
    names.
    """
    text = getattr(annotation, "__forward_arg__", annotation)
    if not isinstance(text, str):
        return annotation
    names = getattr(inspect.unwrap(function), "__globals__", {}) if function else {}
    try:
        return eval(text, {}, ChainMap(names, _KNOWN))  # noqa: S307  (the author's own source)
    except Exception:  # noqa: BLE001  (any expression, never meant to be run)
        return None
