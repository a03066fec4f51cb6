"""A plain kombu consumer under leases: ``python -m harness.app_redis_consumer <url> <name>``.

A message says ``seconds`` to work, and the ``names`` of consumers that hang instead, beating never,
until somebody else has started on it.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kombu import Connection, Queue
from kombu.mixins import ConsumerMixin

from celery_lease.core.heartbeat import Heartbeat
from celery_lease.standalone.consumer import lease_consumer
from celery_lease.standalone.extender import LeaseExtender, LeaseExtenderConfig
from harness.ledger import ENV, Ledger, record

if TYPE_CHECKING:
    from celery_lease.standalone.consumer import LeaseConsumer

QUEUE = Queue("jobs")
LEASE = 2  #: seconds
CONFIG = LeaseExtenderConfig(interval=0.4, extension=LEASE)


class Worker(ConsumerMixin):
    """Works on one message at a time."""

    def __init__(self, connection: Connection, name: str) -> None:
        self.connection = connection
        self.name = name
        self.leases: LeaseConsumer | None = None

    def get_consumers(self, consumer: Any, channel: Any) -> list[Any]:
        self.leases = lease_consumer(channel, seconds=LEASE)
        return [consumer([QUEUE], on_message=self.work, prefetch_count=1)]

    def on_consume_ready(self, *_: Any, **__: Any) -> None:
        sys.stderr.write(f"{self.name} ready\n")

    def on_iteration(self) -> None:
        assert self.leases is not None
        for reaped in self.leases.reap():
            record("reaped", reaped.about["id"], self.name)

    def work(self, message: Any) -> None:
        assert self.leases is not None
        job, lease = message.payload, self.leases.lease_of(message)
        facts = {"token": lease.fencing_token, "losses": lease.losses}
        record("start", job["id"], self.name, **facts)
        heartbeat, ledger = Heartbeat(), Ledger(Path(os.environ[ENV]))
        with LeaseExtender(CONFIG).attach(lease, heartbeat):
            end = time.monotonic() + job["seconds"]
            while time.monotonic() < end:
                time.sleep(0.1)
                if self.name not in job["names"]:
                    heartbeat.beat()
                elif ledger.count("start", job["id"]) > 1:
                    break
        message.ack()
        record("end", job["id"], self.name, **facts)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    with Connection(sys.argv[1]) as connection:
        Worker(connection, sys.argv[2]).run()
