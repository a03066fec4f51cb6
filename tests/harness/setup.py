"""How a test configures the Celery app of its workers and of its own process."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

from celery import Celery

from harness import last_words

if TYPE_CHECKING:
    from collections.abc import Mapping

BROKER = "HARNESS_BROKER"
BACKEND = "HARNESS_BACKEND"
CONF = "HARNESS_CONF"


@dataclass(frozen=True, slots=True)
class Setup:
    """One broker, one result backend (None: results are ignored), and Celery settings."""

    broker: str
    backend: str | None = None
    conf: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_env(cls) -> Self:
        """Read back what :meth:`env` wrote."""
        if BROKER in os.environ:  # a process that a test started
            last_words.offer()
        return cls(
            os.environ.get(BROKER, "memory://"),
            os.environ.get(BACKEND) or None,
            json.loads(os.environ.get(CONF, "{}")),
        )

    @property
    def database(self) -> int:
        """The number of the Redis database that the broker URL names."""
        return int(self.broker.partition("?")[0].rpartition("/")[2])

    def env(self) -> dict[str, str]:
        """Return the variables that carry this setup to a worker."""
        return {
            BROKER: self.broker,
            BACKEND: self.backend or "",
            CONF: json.dumps(dict(self.conf)),
        }

    def having(self, **conf: Any) -> Self:
        """Return a copy with further settings; ``broker_transport_options`` are merged."""
        options = "broker_transport_options"
        merged = {**self.conf, **conf}
        if options in conf:
            merged[options] = {**self.conf.get(options, {}), **conf[options]}
        return replace(self, conf=merged)

    def app(self, name: str = "harness") -> Celery:
        """Return a new app, for a worker's module or to send from the test."""
        app = Celery(name, broker=self.broker, backend=self.backend, set_as_current=False)
        app.conf.update(
            broker_connection_retry_on_startup=True,
            task_ignore_result=self.backend is None,
            worker_hijack_root_logger=True,
        )
        app.conf.update(self.conf)
        return app
