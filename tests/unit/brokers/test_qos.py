"""What was read together is held together, although it is delivered one by one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from kombu.transport import virtual

from celery_lease.brokers.qos import HoldingQoS
from celery_lease.core.delivery import Claim


class QoS(HoldingQoS, virtual.QoS):
    """As a transport's own, whose leases have names of their own."""

    @staticmethod
    def name_of(message: Any) -> Any:
        return message.body.decode()


class Holder:
    """Remembers what it was told."""

    def __init__(self) -> None:
        self.returned: list[str] = []
        self.kept: set[str] = set()

    def claimed(self, claim: Claim, message: Any) -> None:
        message.lease = claim.token

    def keeps(self, tag: str) -> bool:
        return tag in self.kept

    def requeue(self, tags: list[str], *, front: bool) -> None:
        assert front
        self.returned += tags


def claim(tag: str) -> Claim:
    """Return the claim of a delivery."""
    return Claim(tag=tag, token=7, queue="q", deliveries=1, losses=0, asked_at=0.0, seconds=9.0)


def message(name: str) -> Any:
    """Return a message as kombu makes one from its payload, each time another object."""
    return virtual.Message({"body": name, "properties": {"delivery_tag": f"kombu-{name}"}}, CHANNEL)


CHANNEL: Any = SimpleNamespace(do_restore=False, decode_body=lambda body, _encoding: body)


@pytest.fixture
def qos() -> Any:
    """The record of one channel, with three messages read and the first of them delivered."""
    qos: Any = QoS(CHANNEL)
    qos.holder, qos.leased, qos.held = Holder(), set(), {}
    for name in ("1", "2", "3"):
        qos.hold(claim(name), message(name))
    deliver(qos, "1")
    return qos


def deliver(qos: Any, name: str) -> Any:
    """Deliver a message as kombu does."""
    delivered = message(name)
    qos.append(delivered, delivered.delivery_tag)
    return delivered


def test_a_delivered_message_is_the_one_that_was_held(qos: Any) -> None:
    """The lease that the holder put on the first object of it is on the next one."""
    delivered = qos.get("1")
    assert (delivered.lease, delivered.delivery_tag) == (7, "1")
    assert list(qos.held) == ["2", "3"]


def test_what_was_not_delivered_goes_back_with_its_channel(qos: Any) -> None:
    """Also if nothing was delivered at all, which is all that kombu would return."""
    qos.holder.kept = {"1"}
    qos.restore_unacked_once()
    assert qos.holder.returned == ["3", "2"], "the oldest is at the front of the line"
    assert not qos.held
    qos.restore_unacked_once()
    assert len(qos.holder.returned) == 2


def test_a_plain_message_is_kombus_own(qos: Any) -> None:
    """It was never held."""
    plain = deliver(qos, "plain")
    assert qos.get("kombu-plain") is plain
    assert "kombu-plain" not in qos.leased
    assert not hasattr(plain, "lease")
