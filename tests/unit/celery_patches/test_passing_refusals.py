"""An error of the broker that passes: the worker connects anew, and its start stays one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from celery.exceptions import WorkerShutdown
from celery.worker.consumer import Consumer
from kombu.exceptions import ConnectionError  # noqa: A004
from kombu.transport import get_transport_cls

from celery_lease.celery_patches import passing_refusals
from harness.places import PGMQ

pytestmark = pytest.mark.compat


@pytest.fixture(autouse=True)
def _no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passing_refusals, "REFUSED", 0.0)


def failing(restarts: int = 0, task_consumer: object = None) -> Any:
    """Return what is needed of a consumer that is refused at its start number *restarts*."""
    blueprint = SimpleNamespace(start=lambda _: int("refused"))
    return SimpleNamespace(
        blueprint=blueprint,
        restart_count=restarts,
        task_consumer=task_consumer,
        first_connection_attempt=False,
    )


@pytest.mark.parametrize(("passes", "error"), [(True, ConnectionError), (False, ValueError)])
def test_what_passes_is_a_lost_connection_for_the_consumer(
    passes: bool, error: type[Exception]
) -> None:
    """Celery's consumer calls ``start`` of its blueprint, and connects anew after such an error."""
    consumer = failing()
    passing_refusals.reconnect_after(consumer, lambda _: passes)
    with pytest.raises(error, match="refused"):
        consumer.blueprint.start(consumer)


@pytest.mark.parametrize("name", ["redis", "sqs", "pyamqp", *PGMQ])
def test_every_transport_takes_it_for_a_lost_connection(name: str) -> None:
    """The builtin ``ConnectionError`` was none to kombu's pgmq."""
    pytest.importorskip({"sqs": "boto3", "pgmq": "pgmq"}.get(name, "kombu"))
    assert issubclass(ConnectionError, get_transport_cls(name).connection_errors)


@pytest.mark.parametrize(
    ("restarts", "task_consumer", "at_start"), [(0, None, True), (0, "it", False), (1, None, False)]
)
def test_a_refusal_is_one_of_the_start_until_there_was_a_consumer(
    restarts: int, task_consumer: object, at_start: bool
) -> None:
    """Celery then asks ``broker_connection_retry_on_startup`` rather than the other setting."""
    consumer = failing(restarts, task_consumer)
    passing_refusals.reconnect_after(consumer, lambda _: True)
    with pytest.raises(ConnectionError):
        consumer.blueprint.start(consumer)
    assert consumer.first_connection_attempt is at_start


@pytest.mark.parametrize("retry", [True, False])
def test_at_the_start_celery_does_as_it_does_without_a_broker(retry: bool) -> None:
    """By its own loop: it starts again, or shuts down with an error."""
    consumer: Any = object.__new__(Consumer)
    starts: list[int] = []

    def start(_: object) -> None:
        starts.append(consumer.restart_count)
        if len(starts) == 1:
            int("refused")
        consumer.blueprint.state = 2  # ends Celery's loop: closing

    consumer.__dict__.update(
        app=SimpleNamespace(
            conf=Conf(broker_connection_retry_on_startup=retry, broker_connection_retry=not retry)
        ),
        blueprint=SimpleNamespace(start=start, state=1, restart=lambda _: None),
        connection_errors=(ConnectionError,),
        conninfo=SimpleNamespace(as_uri=lambda: "redis://"),
        connection=None,
        hub=None,
        task_consumer=None,
        first_connection_attempt=False,  # as a connection that was made leaves it
        _restart_state=SimpleNamespace(step=lambda: None),
        on_close=lambda: None,
    )
    passing_refusals.reconnect_after(consumer, lambda _: True)
    if retry:
        consumer.start()
        assert starts == [0, 1]
    else:
        with pytest.raises(WorkerShutdown):
            consumer.start()
        assert starts == [0]


class Conf(dict[str, Any]):
    """Settings by attribute and by name, as Celery reads them."""

    broker_channel_error_retry = False

    def __getattr__(self, name: str) -> Any:
        return self[name]
