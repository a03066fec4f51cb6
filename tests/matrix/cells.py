"""Which modes, pools and brokers are tried together, and what is known not to work yet."""

from __future__ import annotations

from dataclasses import dataclass

from harness.places import PGMQ

MODES = ("heartbeat", "daemon", "observe")
POOLS = ("prefork", "threads", "solo", "gevent", "eventlet")
#: The names are those of ``harness.places``.
BROKERS = ("valkey", "sqs", *PGMQ, "rabbitmq quorum")


@dataclass(frozen=True, slots=True)
class Cell:
    """One combination."""

    mode: str
    pool: str
    broker: str

    def __str__(self) -> str:
        return f"{self.mode}-{self.pool}-{self.broker.partition(' ')[0]}"

    @property
    def slots(self) -> int:
        """How many tasks a worker runs at once."""
        return 1 if self.pool == "solo" else 4

    @property
    def is_askable(self) -> bool:
        """Whether Celery has remote control on the broker."""
        return self.broker not in {"sqs", "pgmq"}


def covering() -> list[Cell]:
    """Return every pool on every broker, so that each mode meets each pool and each broker."""
    return [
        Cell(MODES[(row + column) % len(MODES)], pool, broker)
        for row, pool in enumerate(POOLS)
        for column, broker in enumerate(BROKERS)
    ]


def whole() -> list[Cell]:
    """Return every mode on every pool on every broker."""
    return [Cell(mode, pool, broker) for mode in MODES for pool in POOLS for broker in BROKERS]


def known_fault(cell: Cell, scenario: str) -> str | None:
    """Return why a scenario fails in a cell, as far as that is known."""
    for pools, brokers, scenarios, reason in FAULTS:
        if cell.pool in pools and cell.broker in brokers and scenario in scenarios:
            return reason
    return None


#: Pools, brokers, scenarios, and why these fail there.
FAULTS: tuple[tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...], str], ...] = ()
