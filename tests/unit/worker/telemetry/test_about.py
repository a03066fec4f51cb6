"""What a worker says of itself when it starts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from kombu import Connection

from celery_lease import LeasedTask, settings
from celery_lease.worker.policies import Policies
from celery_lease.worker.telemetry.about import log_start


@pytest.mark.parametrize(
    ("dead_letters", "queue"), [(True, "{queue}.dead"), (False, "of the broker's")]
)
def test_one_line_says_which_leases_are_kept(
    caplog: pytest.LogCaptureFixture, dead_letters: bool, queue: str
) -> None:
    """Of how many tasks, with all their modes and extensions; without the broker's password."""
    app = Celery("about", set_as_current=False)

    def work() -> None: ...

    for name, options in {"a": {}, "b": {"lease_mode": "daemon", "lease_extension": 9.0}}.items():
        app.task(work, name=name, base=LeasedTask, lazy=False, **options)
    loaded = settings.load(app.conf)
    leases = SimpleNamespace(dead_letter_queue_of=str if dead_letters else None)
    connection = Connection("redis://u:secret@127.0.0.1//")
    runtime = SimpleNamespace(leases=leases)
    consumer: Any = SimpleNamespace(lease_runtime=runtime, connection=connection)
    with caplog.at_level("INFO"):
        log_start(consumer, Policies(app, loaded), loaded)
    (line,) = caplog.messages
    assert line.startswith(
        "leases for 2 tasks: lease_mode daemon/heartbeat, lease_extension 9/300 s, broker "
    )
    assert f"dead-letter queue {queue}" in line
    assert "secret" not in line
