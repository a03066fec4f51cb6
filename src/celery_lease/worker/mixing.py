"""Combines ``LeasedRequest`` with the request class of a task's author.

Both are needed: ``LeasedRequest`` begins and ends the lease, and the author's methods are called.
``LeasedRequest`` comes first, so that an override without ``super()`` cannot leave the lease out,
and no override is called for a run that lost its lease.
"""

from __future__ import annotations

from types import new_class
from typing import Any

from celery.utils.imports import symbol_by_name
from celery.worker.request import Request

from celery_lease.core.faults import Fault
from celery_lease.settings import LeaseConfigError
from celery_lease.worker.request import LastRequest, LeasedRequest

#: The remedy for a class that cannot be combined.
HINT = "inherit from celery_lease.LeasedRequest, or make it a plain task"


def mixed(own: Any, task: str, base: type[LeasedRequest] = LeasedRequest) -> type[LeasedRequest]:
    """Return a class that is both a ``LeasedRequest`` and the author's *own*.

    Args:
        own: The author's class, or its path.
        task: The task's name, for errors.
        base: The kind of leased request.

    Raises:
        LeaseConfigError: There is no such class, it makes no requests, or it allows no other base.
    """
    found = _found(own, task)
    if not (isinstance(found, type) and issubclass(found, Request)):
        raise _refused(own, "must be a subclass of celery.worker.request.Request", task)
    if issubclass(found, base):
        return found
    if found is Request:
        return base
    try:
        return new_class(
            found.__name__,
            (base, found, LastRequest),
            exec_body=lambda body: body.update(
                __module__=found.__module__, __qualname__=found.__qualname__, __doc__=found.__doc__
            ),
        )
    except Exception as exc:
        rule = f"cannot be mixed with LeasedRequest ({exc})"
        raise _refused(own, rule, task) from exc


def _found(own: Any, task: str) -> object:
    try:
        return symbol_by_name(own)
    except (ImportError, AttributeError, ValueError) as exc:
        raise _refused(own, f"cannot be imported ({exc})", task) from exc


def _refused(own: object, rule: str, task: str) -> LeaseConfigError:
    return LeaseConfigError((Fault("Request", own, rule, HINT),), f"task {task!r}")
