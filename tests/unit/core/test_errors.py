"""What errors say, and that they say it on the other side of a pickle or a result backend."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from celery import Celery
from celery.exceptions import ImproperlyConfigured

import celery_lease
import celery_lease.task.checkpoints
from celery_lease import LeaseConfigError, LeaseError
from celery_lease.core.faults import Fault

FACTS: dict[str, tuple[Any, ...]] = {
    "LeaseLost": ("id-1", "another delivery owns the message"),
    "ShutdownRequested": ("id-1",),
    "TaskCancelled": ("id-1",),
    "TooManyDeliveries": ("id-1", 5, "celery.dead"),
    "ReceiptHandleExpiredError": ("message-1",),
    "AlreadyAttached": ("message-1",),
    "UnsupportedBroker": ("filesystem", ("redis", "sqs"), "it keeps nothing"),
    "UnsupportedOperation": ("memory", "dead_letter"),
    "LeaseConfigError": ((Fault("lease_interval", -1, "must be positive", "set 5"),), "app"),
    "CheckpointError": ("id-1", "no store"),
    "CheckpointTooLarge": ("id-1", 70_000, 65_536),
}


def family(root: type[LeaseError] = LeaseError) -> list[type[LeaseError]]:
    """Return every error of the package below ``root``, itself included."""
    below = [each for cls in root.__subclasses__() for each in family(cls)]
    return [root, *below] if root.__module__.startswith("celery_lease") else below


ERRORS = sorted(set(family()), key=lambda cls: cls.__name__)


def example(cls: type[LeaseError]) -> LeaseError:
    """Return an error with every fact that it can carry."""
    return cls(*FACTS.get(cls.__name__, ("id-1", "a reason")))


@pytest.mark.parametrize("cls", ERRORS)
@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_an_error_survives_pickling_with_all_its_facts(
    cls: type[LeaseError], protocol: int
) -> None:
    """Breaks when an error arrives in another process as a TypeError, or without its facts."""
    error = example(cls)
    twin = pickle.loads(pickle.dumps(error, protocol))  # noqa: S301
    assert type(twin) is cls
    assert vars(twin) == vars(error)
    assert str(twin) == str(error)
    assert copy.copy(error).args == error.args


@pytest.mark.parametrize("cls", ERRORS)
def test_an_error_needs_no_facts_to_be_raised(cls: type[LeaseError]) -> None:
    """Breaks when a user's test, or Celery rebuilding a result, cannot make one plainly."""
    assert isinstance(str(cls()), str)


PLAIN = [cls for cls in ERRORS if cls is not LeaseConfigError]


@pytest.mark.parametrize("cls", PLAIN)
def test_an_error_comes_out_of_a_json_result_backend_as_itself(cls: type[LeaseError]) -> None:
    """Breaks when a caller of ``result.get()`` cannot catch what the task raised."""
    backend = Celery(set_as_current=False, backend="cache+memory://").backend
    backend.serializer = "json"
    stored = backend.decode(backend.encode(backend.prepare_exception(example(cls))))
    twin = backend.exception_to_python(stored)
    assert type(twin) is cls
    assert str(twin) == str(example(cls))


def test_every_error_can_be_caught_by_the_root() -> None:
    """Breaks when one error is left out of the tree that the documentation draws."""
    public = [
        value
        for name in celery_lease.__all__
        if isinstance(value := getattr(celery_lease, name), type)
        and issubclass(value, BaseException)
    ]
    assert len(public) >= 9
    assert all(issubclass(cls, LeaseError) for cls in public)


def test_errors_that_are_also_something_else_are_caught_as_that() -> None:
    """Breaks when code that expects a RuntimeError or Celery's own error misses ours."""
    assert issubclass(celery_lease.AlreadyAttached, RuntimeError)
    assert issubclass(LeaseConfigError, ImproperlyConfigured)


def test_messages_name_the_task_the_reason_and_what_to_do() -> None:
    """Breaks when a line in a log leaves its reader without the next step."""
    assert str(example(celery_lease.LeaseLost)) == (
        "lease of task id-1 lost: another delivery owns the message"
    )
    assert "redis, sqs" in str(example(celery_lease.UnsupportedBroker))
    assert "(it keeps nothing)" in str(example(celery_lease.UnsupportedBroker))
    assert "lease_enabled = False" in str(example(celery_lease.UnsupportedBroker))
    assert "celery.dead" in str(example(celery_lease.TooManyDeliveries))
    assert "leave that block first" in str(example(celery_lease.AlreadyAttached))


def test_every_public_name_can_be_imported_and_is_listed() -> None:
    """Breaks when a name stands in ``__all__`` that nothing backs, or that dir() hides."""
    assert len(set(celery_lease.__all__)) == len(celery_lease.__all__)
    assert set(celery_lease.__all__) <= set(dir(celery_lease))
    assert all(getattr(celery_lease, name) is not None for name in celery_lease.__all__)


def test_a_misspelt_name_is_an_attribute_error() -> None:
    """Breaks when the lazy import answers for names that do not exist."""
    with pytest.raises(AttributeError, match="ToolContxt"):
        celery_lease.ToolContxt  # noqa: B018
