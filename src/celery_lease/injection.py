"""How a task's function is given its context without its callers knowing of it."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from celery_lease.context import ToolContext

if TYPE_CHECKING:
    from collections.abc import Callable

CONTEXT_NAME = "context"


@dataclass(frozen=True, slots=True)
class Injection:
    """Where a function wants its context, if it wants one."""

    name: str | None  #: the parameter; None: nowhere
    position: int  #: its place among the positional parameters; -1: by keyword only
    public: inspect.Signature  #: the signature without it

    @classmethod
    def of(cls, function: Callable[..., Any], *, skip_first: bool) -> Injection:
        """Find the parameter annotated ``ToolContext``, or keyword-only and named ``context``.

        Args:
            function: The task's function, as its author wrote it.
            skip_first: The first parameter is the task itself.
        """
        signature = inspect.signature(function)
        parameters = list(signature.parameters.values())
        wanted = next((each for each in parameters if _wants_context(each, function)), None)
        others = [each for each in parameters[skip_first:] if each is not wanted]
        public = signature.replace(parameters=others)
        if wanted is None:
            return cls(None, -1, public)
        if wanted.kind is wanted.KEYWORD_ONLY:
            return cls(wanted.name, -1, public)
        return cls(wanted.name, parameters.index(wanted) - skip_first, public)

    def given(self, kwargs: dict[str, Any]) -> bool:
        """Whether a caller passed a context of its own, as tests do."""
        return self.name is not None and self.name in kwargs

    def arguments(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], context: ToolContext
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments with the context in its place."""
        if self.name is None or self.name in kwargs:
            return args, kwargs
        if 0 <= self.position <= len(args):
            return (*args[: self.position], context, *args[self.position :]), kwargs
        return args, {**kwargs, self.name: context}


def _wants_context(parameter: inspect.Parameter, function: Callable[..., Any]) -> bool:
    if parameter.annotation is not parameter.empty:
        if _names_context(parameter.annotation, function):
            return True
    return parameter.kind is parameter.KEYWORD_ONLY and parameter.name == CONTEXT_NAME


def _names_context(annotation: object, function: Callable[..., Any]) -> bool:
    """Recognise ToolContext, also in a string and also as one of several alternatives.

    A string is looked up among the function's globals, so that an alias counts; where it names
    something imported for type checkers only, its own last word decides.
    """
    if isinstance(annotation, str):
        names = getattr(inspect.unwrap(function), "__globals__", {})
        words = [word.strip(" \"'").rpartition("]")[0] or word for word in annotation.split("|")]
        words = [word.strip(" \"'").removeprefix("Optional[").removesuffix("]") for word in words]
        return any(
            _resolve(word, names) is ToolContext or word.rpartition(".")[2] == "ToolContext"
            for word in words
        )
    alternatives = getattr(annotation, "__args__", ())
    return annotation is ToolContext or ToolContext in alternatives


def _resolve(dotted: str, names: dict[str, Any]) -> object:
    first, *rest = dotted.split(".")
    value = names.get(first)
    for each in rest:
        value = getattr(value, each, None)
    return value
