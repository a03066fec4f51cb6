"""The broker in this process's memory."""

from __future__ import annotations

from kombu.transport.memory import Channel

from celery_lease.brokers.memory.driver import STORE
from harness.lease_desk import Bench


def empty_memory() -> Bench:
    """Return a bench at the process's one broker, with nothing in it."""
    Channel.queues.clear()
    STORE.deliveries.clear()
    return Bench("memory://")
