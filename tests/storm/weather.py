"""What a storm is made of, all of it drawn from one seed: how fast it pours, and what falls."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Kinds of messages: share of all, shortest and longest work, longest countdown, in seconds.
KINDS = {
    "short": (0.85, 0.0, 0.02, 0.0),
    "longer": (0.05, 0.5, 2.0, 0.0),
    "later": (0.10, 0.0, 0.02, 4.0),
}


@dataclass(frozen=True, slots=True)
class Drop:
    """One message: what it is, and how long after the last one it is sent."""

    kind: str
    gap: float
    seconds: float
    countdown: float


def drops(seed: int, slowest: float, fastest: float) -> Iterator[Drop]:
    """Yield messages without end, at a rate that changes all the time.

    Between showers the queue is empty and a worker waits at the broker for the next message, which
    may come just when the worker is told to stop; in showers its prefetch window is full.

    Args:
        seed: The same seed gives the same messages.
        slowest: Messages a second in the calmest moments.
        fastest: Messages a second in showers.
    """
    chance = random.Random(seed)
    while True:
        rate = chance.choice((slowest, (slowest + fastest) / 3, fastest))
        for _ in range(int(rate * chance.uniform(0.2, 1.5)) + 1):
            yield _drop(chance, rate)


def _drop(chance: random.Random, rate: float) -> Drop:
    shares = [share for share, *_ in KINDS.values()]
    (kind,) = chance.choices(list(KINDS), shares)
    _, shortest, longest, countdown = KINDS[kind]
    return Drop(
        kind,
        gap=chance.expovariate(rate),
        seconds=chance.uniform(shortest, longest),
        countdown=chance.uniform(0.0, countdown),
    )
