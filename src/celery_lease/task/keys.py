"""The exclusive key of a task's call: its rule is checked at the declaration, and used at the call.

The sender puts the key into a header of the message, :data:`~celery_lease.core.keys.HEADER`, where
it stays in retries. Whoever sends without this class leaves that to the worker.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from celery_lease import brokers
from celery_lease.core import keys
from celery_lease.core.errors import UnsupportedBroker
from celery_lease.core.faults import Fault
from celery_lease.core.keys import HEADER, KeyFault, Rule
from celery_lease.settings import LeaseConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from celery import Celery


OPTION = "lease_key"
HINT = "name parameters of the task, as in 'import:{customer_id}', or give a callable of them"
#: The transport of each app's broker, if that has no keys, else "". A broker is looked at once.
_unable: WeakKeyDictionary[Any, str] = WeakKeyDictionary()


def rule_of(cls: type) -> Rule | None:
    """Return the rule that a task class has, as its author wrote it."""
    # Past the binding of a function. Each call of a leased task comes here.
    rule = next((vars(each)[OPTION] for each in cls.__mro__ if OPTION in vars(each)), None)
    return (rule.__func__ if isinstance(rule, staticmethod) else rule) or None


def check_rule(rule: Rule | None, run: Any, name: str) -> None:
    """Make sure that a rule can make a key of the calls of a task.

    Raises:
        LeaseConfigError: It cannot.
    """
    if rule is None:
        return
    try:
        keys.check(rule, inspect.signature(run))
    except KeyFault as exc:
        fault = Fault(OPTION, rule, str(exc), HINT)
        raise LeaseConfigError((fault,), f"task {name!r}") from None


def key_of_call(
    task: Any, rule: Rule | None, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> str | None:
    """Return the key of a call; empty: it needs none; None: its arguments are none for the task.

    Raises:
        LeaseConfigError: The rule cannot make one.
    """
    if not rule:
        return ""
    try:
        signature = inspect.signature(task.run)
        keys.check(rule, signature)
        return keys.key_of(rule, signature, args, kwargs)
    except TypeError:
        return None  # Celery refuses the call, or the task fails of it
    except KeyFault as exc:
        raise LeaseConfigError((Fault(OPTION, rule, str(exc), HINT),), call(task.name)) from exc


def with_key(
    task: Any, headers: Mapping[str, Any], given: list[Rule | None], call_: tuple[Any, Any]
) -> dict[str, Any]:
    """Return a call's headers with its key, if its task or the call has a rule for one.

    Args:
        task: Whose call it is.
        headers: Of the message; a retry brings the key of the call that it repeats.
        given: The rule that the call itself gives, if it gives one.
        call_: Its arguments.

    Raises:
        LeaseConfigError: There is no key in them, or the broker has none.
    """
    rule = given[0] if given else rule_of(type(task))
    if (HEADER in headers or rule is None) and not given:
        return dict(headers)
    args, kwargs = call_
    key = key_of_call(task, rule, args or (), kwargs or {})
    if key:
        _check_broker(task.app, rule, task.name)
    return {**headers, **({} if key is None else {HEADER: key})}


def refuse_many(rule: Rule, name: str) -> LeaseConfigError:
    """Return the error of one message for many calls of a task with a key."""
    text = "cannot hold for map, starmap or chunks, whose one message brings many calls"
    hint = "use group(), or give that call a lease_key of its own, '' for none"
    return LeaseConfigError((Fault(OPTION, rule, text, hint),), call(name))


def call(name: str) -> str:
    """Return where the options of a call are from, for errors."""
    return f"call of task {name!r}"


def able() -> tuple[str, ...]:
    """Return the transports whose drivers can enforce keys."""
    found = []
    for name in sorted(brokers.drivers()):
        try:
            if brokers.driver_class(name).capabilities.keys:
                found.append(name)
        except UnsupportedBroker:  # a driver that does not load
            continue
    return tuple(found)


def unable(transport: str) -> str:
    """Return why keys do not work on a transport, for errors."""
    return f"broker {transport!r} has no exclusive keys; brokers that have: {', '.join(able())}"


def _check_broker(app: Celery, rule: Any, name: str) -> None:
    if app.conf.task_always_eager:
        return
    if app not in _unable:
        transport = app.connection_for_write().transport.driver_type
        _unable[app] = "" if brokers.driver_class(transport).capabilities.keys else transport
    if transport := _unable[app]:
        hint = "use one of these, or leave lease_key out"
        raise LeaseConfigError((Fault(OPTION, rule, unable(transport), hint),), call(name))
