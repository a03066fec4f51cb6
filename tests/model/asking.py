"""What the machine asks for, and what it says where server and model differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from celery_lease.core.delivery import Answer

if TYPE_CHECKING:
    from celery_lease.brokers.redis.arrivals import Arrived
    from celery_lease.brokers.redis.delivery import Delivery
    from model.lease_model import Text


class Disagreement(AssertionError):
    """The server is not where the model is."""


@dataclass
class Asking:
    """A claim that its asker hears nothing of."""

    delivery: Delivery | Arrived
    text: Text
    plain: str  # what kombu would record of it
    seconds: float
    waits: bool = False
    arrived: bool = False
    decides: bool = True

    @property
    def may_be_adopted(self) -> bool:
        return bool(self.plain) and not self.arrived


def agree(what: str, real: object, expected: object) -> None:
    """Raise Disagreement unless both are the same."""
    if real != expected:
        raise Disagreement(f"{what}: {real!r}, expected {expected!r}")


def answers(held: list[bool]) -> list[Answer]:
    """Return what a driver must make of the model's answers."""
    return [Answer.HELD if each else Answer.LOST for each in held]
