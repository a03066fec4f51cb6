"""Whether a channel may take another message: the holder is asked, whoever else is."""

from __future__ import annotations

from types import MethodType, SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from kombu import Connection

from celery_lease.brokers.memory import channel as memory
from celery_lease.brokers.redis import channel as redis

if TYPE_CHECKING:
    from collections.abc import Callable


def wrap(qos: Any, allows: Callable[[], bool]) -> None:
    """Do as Celery's consumer does for ``worker_disable_prefetch``."""
    original = qos.can_consume

    def can_consume(_: Any) -> bool:
        return bool(allows() and original())

    qos.can_consume = MethodType(can_consume, qos)


@pytest.mark.parametrize("module", [redis, memory])
@pytest.mark.parametrize("wrapped", ["before", "after", "twice", "not"])
def test_the_holder_is_asked_whoever_wraps_the_question(module: Any, wrapped: str) -> None:
    """On the object itself, before it leases or after: each has to allow it."""
    url = "redis://127.0.0.1:1/0" if module is redis else "memory://"
    channel: Any = SimpleNamespace(do_restore=False, _in_poll=None)
    base = module.LeaseQoS.__mro__[2]
    qos = base.__new__(base)
    qos.__dict__.update(channel=channel, prefetch_count=0, _delivered={}, _dirty=set())
    assert Connection(url).transport_cls
    allowed = [True, True]
    if wrapped in {"before", "twice"}:
        wrap(qos, lambda: allowed[0])
    qos.__class__ = module.LeaseQoS
    qos.holder, qos.receiver = SimpleNamespace(backlogged=False), mock.Mock()
    if wrapped in {"after", "twice"}:
        wrap(qos, lambda: allowed[1])
    assert qos.can_consume()
    qos.holder.backlogged = True
    assert not qos.can_consume()
    qos.holder.backlogged = False
    for who, asked in enumerate(["before", "after"]):
        allowed[who] = False
        assert qos.can_consume() is (wrapped not in {asked, "twice"})
        allowed[who] = True
    assert qos.can_consume()


def test_a_reply_under_way_is_read_whatever_anybody_says() -> None:
    """A message is in it; and kombu 5.5 would look at the socket again and again."""
    base: Any = redis.LeaseQoS.__mro__[2]
    qos = base.__new__(base)
    channel = SimpleNamespace(_in_poll=object())
    qos.__dict__.update(channel=channel, prefetch_count=0, _delivered={}, _dirty=set())
    qos.__class__ = redis.LeaseQoS
    qos.holder, qos.receiver = SimpleNamespace(backlogged=True), mock.Mock()
    wrap(qos, lambda: False)
    assert qos.can_consume()
    qos.receiver.step_back.assert_not_called()
    channel._in_poll = None
    assert not qos.can_consume()
    qos.receiver.step_back.assert_called_once()  # others are to watch
