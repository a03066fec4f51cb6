"""Exclusive keys: which key a call needs, and how a broker answers a request for one.

A rule makes the key of a call: a template over the task's parameters, ``"import:{customer_id}"``,
or a callable, which gets those that it names. It is checked where it is declared, and used by the
sender of a message, or by the worker that receives one which has no key on it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from string import Formatter
from typing import Any

#: A template or a callable.
Rule = str | Callable[..., object]

#: Message header with the key that its sender computed; empty: it needs none.
HEADER = "lease_key"
#: Characters of the longest key.
LONGEST = 500


class KeyFault(ValueError):
    """A rule, or its result for a call, is no key; the text has the reason."""


class OnBusy(StrEnum):
    """What becomes of a message whose key is busy."""

    WAIT = "wait"  #: it is parked until the key is free
    DROP = "drop"  #: its task is revoked
    REPLACE = "replace"  #: it is parked in place of the one that is, which is revoked


@dataclass(frozen=True, slots=True, kw_only=True)
class Exclusive:
    """The key that a message's task needs."""

    key: str
    limit: int = 1  #: so many may hold it at once
    on_busy: OnBusy = OnBusy.WAIT
    decides: bool = True  #: it is to be turned away when it is received, if its key is busy
    expires: float | None = None  #: seconds since 1970 after which its task is not to start
    retried: bool = False  #: its task ran before


class Verdict(StrEnum):
    """A broker's answer to a request for a key."""

    HELD = "held"
    LOST = "lost"  #: the lease is over
    PARKED = "parked"  #: the lease is over, and the message waits at the broker
    DROPPED = "dropped"  #: the key is busy, and its task is not to run
    REPLACED = "replaced"  #: likewise, because another one waits in its place
    UNKNOWN = "unknown"  #: no answer

    @property
    def revokes(self) -> bool:
        return self in (Verdict.DROPPED, Verdict.REPLACED)


@dataclass(frozen=True, slots=True)
class KeyAnswer:
    """The answer, and the id of the task that is why; empty: unknown."""

    verdict: Verdict
    by: str = ""

    def reason(self, key: str) -> str:
        if self.verdict is Verdict.REPLACED:
            return f"replaced by task {self.by or '?'}, which waits for key {key}"
        return f"dropped: key {key} is held by task {self.by or '?'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parked:
    """A task whose message waits for a key."""

    use: KeyUse
    user: KeyUser
    position: int  #: in the line, from 1


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyUse:
    """Who holds a key and who waits for it, by the broker's record."""

    key: str
    limit: int  #: of the last that came
    holders: Sequence[KeyUser] = ()
    parked: Sequence[KeyUser] = ()  #: in the order in which they are woken


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyUser:
    """A task that holds a key or waits for it."""

    tag: str
    task: str
    task_id: str
    queue: str
    worker: str  #: that holds it, or had its message last
    since: float  #: seconds since 1970
    limit: int


def check(rule: Rule, signature: inspect.Signature) -> None:
    """Make sure that a *rule* can make a key of a call.

    Raises:
        KeyFault: It names no parameter of the task, or is no template.
    """
    known = signature.parameters
    variadic = any(each.kind is each.VAR_KEYWORD for each in known.values())
    for name in _wanted(rule)[0] if callable(rule) else names_in(rule):
        if name not in known and not variadic:
            names = ", ".join(known) or "none"
            raise KeyFault(f"names {name!r}, which is no parameter of the task (it has: {names})")


def _wanted(rule: Callable[..., object]) -> tuple[list[str], bool]:
    """Return the parameters that a callable wants, and whether it takes all others, too.

    Raises:
        KeyFault: It does not say, or wants one that has no name.
    """
    try:
        wanted = inspect.signature(rule).parameters.values()
    except (TypeError, ValueError):
        raise KeyFault("is a callable whose parameters cannot be read") from None
    if any(each.kind is each.POSITIONAL_ONLY for each in wanted):
        raise KeyFault("is a callable with a parameter that takes no name")
    named = [
        each.name for each in wanted if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)
    ]
    return named, any(each.kind is each.VAR_KEYWORD for each in wanted)


def names_in(template: str) -> list[str]:
    """Return the parameters that a template names.

    Raises:
        KeyFault: It is no template.
    """
    try:
        parts = list(Formatter().parse(template))
    except ValueError as exc:
        raise KeyFault(f"is no template: {exc}") from None
    names = []
    for _, field, spec, _ in parts:
        if field is None:
            continue
        name = field.partition(".")[0].partition("[")[0]
        if not name or name.isdecimal():
            raise KeyFault("has a placeholder without a name; name a parameter of the task")
        if "{" in (spec or ""):
            raise KeyFault("has a placeholder within a placeholder")
        names.append(name)
    return names


def key_of(
    rule: Rule, signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> str:
    """Return the key of a call; empty: a callable says that it needs none.

    Raises:
        TypeError: The arguments are none for the task.
        KeyFault: There is no key in them.
    """
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    named = dict(bound.arguments)
    for each in signature.parameters.values():
        if each.kind is each.VAR_KEYWORD:
            named |= named.pop(each.name)
    try:
        if callable(rule):
            wanted, takes_all = _wanted(rule)
            made = rule(**{name: named[name] for name in (named if takes_all else wanted)})
        else:
            made = Formatter().vformat(rule, (), named)
    except KeyFault:
        raise
    except Exception as exc:
        raise KeyFault(f"cannot be made of these arguments: {type(exc).__name__}: {exc}") from exc
    if made is None:
        return ""
    return checked(made)


def checked(made: object) -> str:
    """Return a key that can be one.

    Raises:
        KeyFault: It cannot.
    """
    if not isinstance(made, str):
        raise KeyFault(f"made {type(made).__name__} instead of text")
    if not made or len(made) > LONGEST:
        raise KeyFault(f"made a key of {len(made)} characters; it must have 1 to {LONGEST}")
    if not made.isprintable():  # half a surrogate pair is not, either
        raise KeyFault("made a key with a character that cannot be printed")
    return made
