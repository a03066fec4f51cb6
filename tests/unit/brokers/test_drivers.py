"""How drivers are found: ours, and those of packages that this one knows nothing of."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING, Any

import pytest
from kombu import Connection

from celery_lease import brokers
from celery_lease.brokers import GROUP
from celery_lease.brokers.memory.driver import MemoryDriver
from celery_lease.core.driver import Driver
from celery_lease.core.errors import UnsupportedBroker, UnsupportedOperation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class FileDriver(MemoryDriver):
    """A driver of somebody else's."""

    label = "the folder"


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Have these entry points be installed, and no others."""

    def install(**values: str) -> None:
        points = [EntryPoint(name, value, GROUP) for name, value in values.items()]
        monkeypatch.setattr(brokers, "entry_points", lambda group: points * (group == GROUP))
        brokers.drivers.cache_clear()

    yield install
    brokers.drivers.cache_clear()


def test_a_driver_of_another_package_is_found(installed: Callable[..., None]) -> None:
    """By kombu's word for its transport; nothing else names it."""
    installed(filesystem=f"{__name__}:FileDriver")
    assert brokers.kind_of(Connection("filesystem://")) is FileDriver
    with Connection("filesystem://") as connection:
        assert isinstance(brokers.driver(connection.channel()), FileDriver)


def test_ours_are_found_where_nothing_is_installed(installed: Callable[..., None]) -> None:
    """As in a source tree that is newer than its installation, or in a frozen application."""
    installed()
    assert brokers.kind_of(Connection("memory://")) is MemoryDriver
    assert set(brokers.drivers()) == {"amqp", "memory", "pgmq", "redis", "sqs"}


def test_ours_are_found_as_they_are_registered() -> None:
    """The entry points of this package lead where its own names do."""
    for name, point in brokers.drivers().items():
        assert point.value == f"celery_lease.brokers.{name}.driver:{name.capitalize()}Driver"


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("no.such.module:Driver", "does not load: No module named 'no'"),
        (f"{__name__}:NoDriver", "does not load: "),
        (f"{__name__}:GROUP", "is no subclass of celery_lease.brokers.Driver"),
    ],
)
def test_a_driver_that_is_none_is_refused_by_name(
    installed: Callable[..., None], value: str, why: str
) -> None:
    """In one error that says where it is registered, and what to use instead."""
    installed(filesystem=value)
    with pytest.raises(UnsupportedBroker) as refused:
        brokers.kind_of(Connection("filesystem://"))
    text = str(refused.value)
    assert f"no leases on transport 'filesystem' (its driver {value} {why}" in text
    assert "Use one of these brokers" in text


def test_nothing_is_known_of_a_broker_without_a_driver() -> None:
    """Who asks gets the base class, which can do nothing and says nothing."""
    known = brokers.driver_class("filesystem")
    assert known is Driver
    assert not known.capabilities.extends
    assert (known.label, known.doctor(), known.longest_poll(None)) == ("", None, 0.0)


def test_what_a_driver_leaves_out_is_there() -> None:
    """With what a broker without anything of the kind does."""

    class Least(Driver):
        connect = lease_messages = extend = requeue = MemoryDriver.extend

        def complete(self, tags: Any) -> Any:
            return [f"completed {tag}" for tag in tags]

    driver: Any = Least()
    assert driver.drop(["a"]) == ["completed a"]
    assert driver.reap(limit=1) == driver.overdue(limit=1) == []
    driver.close()
    for operation, arguments in {
        "dead_letters": (),
        "records": (),
        "dead_letter": ("a", "q"),
        "checkpoints": (None, 0),
    }.items():
        with pytest.raises(UnsupportedOperation):
            getattr(driver, operation)(*arguments)


def test_only_rabbitmq_needs_work_while_nothing_is_held() -> None:
    """The keeper rests at all others."""
    tended = {name for name in ("amqp", "memory", "redis", "sqs") if is_tended(name)}
    assert tended == {"amqp"}


def is_tended(name: str) -> bool:
    module = import_module(f"celery_lease.brokers.{name}.driver")
    (driver,) = [
        each
        for each in vars(module).values()
        if isinstance(each, type)
        and issubclass(each, Driver)
        and each.__module__ == module.__name__
    ]
    return bool(object.__new__(driver).is_tended)
