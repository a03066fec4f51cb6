"""A lost connection in Celery's own code: what ends the worker, and what its pool remembers."""

from __future__ import annotations

import logging
import os
import pickle
import struct
from collections import deque
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import celery
import pytest
from billiard import pool as billiard_pool
from celery.concurrency.asynpool import AsynPool, ResultHandler
from celery.concurrency.prefork import TaskPool
from celery.exceptions import WorkerShutdown
from celery.worker.consumer import Consumer
from kombu.asynchronous import Hub, set_event_loop
from kombu.transport import redis as kombu_redis

from celery_lease.celery_patches import (
    forgotten_jobs,
    partial_messages,
    passing_refusals,
    unheard_starts,
    unwatched_processes,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    assert issubclass(ConnectionError, kombu_redis.Transport.connection_errors)


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
        connection_errors=(OSError,),
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


class Processes:
    """Celery's pool of processes, without any; its ``flush`` is Celery's own."""

    def __init__(self) -> None:
        self.inner: Any = object.__new__(AsynPool)
        self.inner.__dict__.update(
            _state=billiard_pool.RUN,
            synack=False,
            _cache={},
            outbound_buffer=deque(),
            _active_writers=set(),
            _active_writes=set(),
            _busy_workers=set(),
            maintain_pool=lambda: None,
            _pool=[],
        )
        pool: Any = object.__new__(TaskPool)
        pool._pool, pool.flush = self.inner, self.inner.flush
        self.ended: list[object] = []
        self.pool = pool
        forgotten_jobs.keep_running_jobs(SimpleNamespace(pool=pool))
        unheard_starts.keep_sent_jobs(SimpleNamespace(pool=pool))
        unwatched_processes.watch_again(SimpleNamespace(pool=pool))

    def job(self, *, accepted: bool, inbox: int = 0, alive: bool = True) -> Any:
        job = billiard_pool.ApplyResult(self.inner._cache, self.ended.append)
        if accepted:
            job._ack(None, 0.0, 1, None)
        job._write_to = SimpleNamespace(inqW_fd=inbox, _is_alive=lambda: alive)
        if inbox:
            self.inner._busy_workers.add(inbox)
        return job


def test_a_pool_hears_of_what_ran_when_the_connection_was_lost() -> None:
    """What it has not begun is forgotten: that message goes back."""
    processes = Processes()
    runs, waits = processes.job(accepted=True), processes.job(accepted=False)
    processes.pool.flush()
    assert runs._job in processes.inner._cache
    assert waits._job not in processes.inner._cache
    runs._set(None, (True, "result"))
    assert processes.ended == ["result"]
    assert processes.inner._cache == {}


def test_a_process_that_runs_a_task_gets_no_second_one_after_a_lost_connection() -> None:
    """It would wait there while another process is idle; of one that is gone nothing is kept."""
    processes = Processes()
    processes.job(accepted=True, inbox=7)
    processes.job(accepted=True, inbox=8, alive=False)
    processes.job(accepted=False, inbox=9)
    processes.pool.flush()
    assert processes.inner._busy_workers == {7}


def test_a_job_that_ends_while_its_pool_forgets_is_not_remembered() -> None:
    """Else its entry would stay for good."""
    processes = Processes()
    runs = processes.job(accepted=True)
    processes.inner.maintain_pool = lambda: runs._set(None, (True, "result"))
    processes.pool.flush()
    assert processes.inner._cache == {}


def test_a_closing_pool_remembers_what_a_process_has_got() -> None:
    """It may run by now, although its process's word for that was not read yet."""
    processes = Processes()
    sent = processes.job(accepted=False)
    processes.inner._state = billiard_pool.CLOSE
    processes.pool.flush()
    assert sent._job in processes.inner._cache
    sent._ack(None, 0.0, 1, None)
    sent._set(None, (True, "result"))
    assert processes.ended == ["result"]
    assert processes.inner._cache == {}


def test_a_closing_pool_sends_the_rest_of_what_it_has_begun_to_send() -> None:
    """A process would wait for it for ever, and the worker for the process."""

    def write() -> Iterator[None]:
        yield
        sent.append("rest")

    sent: list[str] = []
    processes, writing = Processes(), write()
    job, (outbox, inbox) = processes.job(accepted=False), os.pipe()
    next(writing)
    job._writer = lambda: writing
    job._write_to.inq = SimpleNamespace(_writer=inbox)
    job._write_to.sentinel = outbox
    processes.inner._active_writers.add(writing)
    processes.inner._state = billiard_pool.CLOSE
    try:
        processes.pool.flush()
    finally:
        os.close(outbox)
        os.close(inbox)
    assert sent == ["rest"]
    assert not processes.inner._active_writers


def test_a_process_that_celery_forgot_to_watch_ends_no_worker() -> None:
    """It is watched again from the next connection on, where stock Celery fails by it."""
    hub, processes = Hub(), Processes()
    end, ours = os.pipe()
    process = SimpleNamespace(_sentinel_poll=None, _popen=SimpleNamespace(sentinel=end))
    processes.inner._pool.append(process)
    try:
        with pytest.raises((ValueError, AttributeError)):
            processes.inner._track_child_process(process, hub)
        processes.pool.flush()
        processes.inner._track_child_process(process, hub)
        assert list(hub.readers) == [process._sentinel_poll]
        processes.inner._untrack_child_process(process, hub)
    finally:
        hub.close()
        os.close(end)
        os.close(ours)
        set_event_loop(None)


def test_a_pool_that_was_stopped_has_nothing_to_forget() -> None:
    """A cold shutdown's handler stops it before the consumer closes."""
    processes = Processes()
    processes.pool._pool = None
    processes.pool.flush()
    assert processes.inner._cache == {}


def test_celery_remembers_what_runs_from_5_7_on() -> None:
    """There nothing is repaired any more, and the tests above hold for Celery alone."""
    assert forgotten_jobs.is_needed() == (celery.VERSION < (5, 7))


def test_other_pools_are_left_as_they_are() -> None:
    """They have no memory of their own."""
    for name in ("solo", "thread", "gevent"):
        pool: Any = type("TaskPool", (), {"__module__": f"celery.concurrency.{name}"})()
        pool.flush = flush = object()
        forgotten_jobs.keep_running_jobs(SimpleNamespace(pool=pool))
        unwatched_processes.watch_again(SimpleNamespace(pool=pool))
        assert pool.flush is flush


def packed(message: object) -> tuple[bytes, bytes]:
    """Return the two parts of a message of a task process: its length, and its text."""
    body = pickle.dumps(message)
    return struct.pack("!i", len(body)), body


class Owner(SimpleNamespace):
    """Something that can be referred to weakly."""


class Reading:
    """Celery's event loop and its reader of what task processes send, and a pipe from one."""

    def __init__(self) -> None:
        self.hub = Hub()
        self.heard: list[object] = []
        self.ours, self.theirs = os.pipe()
        os.set_blocking(self.ours, False)
        handler: Any = object.__new__(ResultHandler)
        handler.fileno_to_outq = {self.ours: "a process"}
        handler.on_state_change = self.hear
        handler.register_with_event_loop(self.hub)
        self.hub.add_reader(self.ours, handler.handle_event, self.ours)
        processes = SimpleNamespace(_fileno_to_outq=handler.fileno_to_outq)
        self.consumer: Any = Owner(hub=self.hub, pool=SimpleNamespace(_pool=processes))
        partial_messages.read_to_the_end(self.consumer)

    def hear(self, message: object) -> None:
        self.heard.append(message)
        if message == "wrong":
            raise ValueError(message)

    def send(self, message: object) -> bytes:
        """Send the length of a message, let the loop read it, and return the rest."""
        length, body = packed(message)
        os.write(self.theirs, length)
        self.hub.run_once()
        return body

    def close(self) -> None:
        self.hub.close()
        os.close(self.ours)
        os.close(self.theirs)


@pytest.fixture
def reading() -> Iterator[Reading]:
    """Return an event loop of its own with a pipe."""
    reading = Reading()
    yield reading
    reading.close()
    set_event_loop(None)


@pytest.mark.parametrize("message", ["right", "wrong"])
def test_a_message_that_is_half_read_is_read_before_the_loop_is_reset(
    reading: Reading, message: str
) -> None:
    """Whatever comes of it; the loop forgets its readers all the same."""
    os.write(reading.theirs, reading.send(message))
    reading.hub.reset()
    assert reading.heard == [message]
    assert not reading.hub.readers


def test_messages_that_nobody_has_read_are_read_before_the_loop_is_reset(reading: Reading) -> None:
    """A start among them: at a lost connection Celery forgets tasks that have not started."""
    rest = reading.send("half")
    sent = [packed(each) for each in ("wrong", "right")]
    os.write(reading.theirs, rest + b"".join(part for parts in sent for part in parts))
    reading.hub.reset()
    assert reading.heard == ["half", "wrong", "right"]


def test_a_process_that_is_gone_keeps_no_loop(reading: Reading) -> None:
    """Its last message is read."""
    os.write(reading.theirs, b"".join(packed("last")))
    os.close(reading.theirs)
    reading.theirs = os.open(os.devnull, os.O_WRONLY)
    reading.hub.reset()
    assert reading.heard == ["last"]


def test_a_message_that_does_not_come_is_given_up(
    reading: Reading, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its process is stopped or was killed: nobody waits for it for long."""
    monkeypatch.setattr(partial_messages, "MESSAGE_TIMEOUT", 0.0)
    reading.send("half")
    with caplog.at_level(logging.WARNING):
        reading.hub.reset()
    assert reading.heard == []
    assert "it is discarded" in caplog.text


def test_a_worker_without_an_event_loop_has_none_to_reset() -> None:
    """As under gevent."""
    partial_messages.read_to_the_end(SimpleNamespace(hub=None))
