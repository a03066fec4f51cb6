"""What the Redis driver's channel relies on in kombu's without a promise of its."""

from __future__ import annotations

import inspect
from queue import Empty
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from kombu.transport import redis as kombu_redis
from kombu.transport.virtual import Message, QoS

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.compat


def parameters(function: Callable[..., object]) -> list[str]:
    """Return the names of a function's parameters, without self."""
    return [name for name in inspect.signature(function).parameters if name != "self"]


@pytest.mark.parametrize(
    "name",
    [
        *("_brpop_read", "_get_message_priority", "_q_for_pri", "basic_get", "client", "sep"),
        *("ack_emulation", "global_keyprefix", "pool", "unacked_index_key", "unacked_key"),
        *("_in_poll", "connection_errors", "qos"),
    ],
)
def test_a_redis_channel_has_what_the_driver_reads(name: str) -> None:
    """On the class, or set for each channel."""
    made = inspect.getsource(kombu_redis.Channel.__init__)
    assert hasattr(kombu_redis.Channel, name) or f"self.{name} = " in made


@pytest.mark.parametrize(
    ("method", "names"),
    [
        ("append", ["message", "delivery_tag"]),
        ("ack", ["delivery_tag"]),
        ("reject", ["delivery_tag", "requeue"]),
        ("restore_unacked", ["client"]),
        ("can_consume", []),
    ],
)
def test_the_methods_of_the_record_of_messages_take_what_they_took(
    method: str, names: list[str]
) -> None:
    """``LeaseQoS`` overrides them on the live object."""
    assert parameters(getattr(kombu_redis.QoS, method)) == names


def test_the_record_of_messages_keeps_them_as_it_did() -> None:
    """A delivered message until its tag is dirty, by a bound method that marks it so."""
    qos = QoS(SimpleNamespace(do_restore=False), 0)
    qos.append("message", "tag")
    assert qos._delivered == {"tag": "message"}
    qos._quick_ack("tag")
    assert qos._dirty == {"tag"}
    assert qos.can_consume()


def test_a_message_keeps_the_payload_it_came_from() -> None:
    """It goes back to its queue without being decoded again."""
    raw = {"body": "", "properties": {"delivery_tag": "tag"}}
    assert Message(raw, channel=SimpleNamespace(_raw=None, decode_body=None))._raw is raw


def test_nothing_popped_is_empty_and_ends_the_poll() -> None:
    """The reply is read by the client's ``parse_response``; then no ``BRPOP`` is under way."""
    channel = object.__new__(kombu_redis.Channel)
    channel.__dict__["client"] = SimpleNamespace(
        connection=None, parse_response=lambda *_, **__: None
    )
    channel.connection_errors = (OSError,)
    channel._in_poll = object()
    with pytest.raises(Empty):
        channel._brpop_read()
    assert not channel._in_poll
