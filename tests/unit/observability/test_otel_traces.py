"""Spans of leases: when one is made, what it says, and that nothing is kept without an exporter."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from celery_lease.observability import otel_traces
from celery_lease.worker.entries import Ending
from celery_lease.worker.telemetry import exports
from unit.fake_broker import Bench

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opentelemetry.sdk.trace import ReadableSpan

TRACE = f"00-{'ab' * 16}-{'cd' * 8}-01"


@pytest.fixture
def bench() -> Iterator[Bench]:
    """Return a worker."""
    bench = Bench()
    yield bench
    bench.leases.close()


class Spans:
    """What an exporter made of a worker's leases."""

    def __init__(self, bench: Bench, monkeypatch: pytest.MonkeyPatch, transport: str) -> None:
        self.memory = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.memory))
        monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
        self.exporter = otel_traces.Exporter(bench.telemetry(), transport)

    def __call__(self) -> tuple[ReadableSpan, ...]:
        """Return the spans since the last call."""
        self.exporter.run_once()
        found = self.memory.get_finished_spans()
        self.memory.clear()
        return found


@pytest.fixture
def spans(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Spans:
    """Export what happens to the worker's leases."""
    return Spans(bench, monkeypatch, "amqp")


def at(time: float) -> Any:
    """Return what equals a time, but for the rounding of doubles."""
    return pytest.approx(time, rel=0, abs=0.001)


def seconds(nanoseconds: int | None) -> float:
    """Return a span's time in seconds."""
    return (nanoseconds or 0) / 1e9


def test_a_lease_is_a_span_from_its_claim_to_its_end(bench: Bench, spans: Spans) -> None:
    """With the moment at which its task started; without a trace in the headers it has its own."""
    began = bench.clock.wall().timestamp()
    bench.receive("a")
    bench.clock.advance(2)
    assert bench.leases.start("a")
    bench.leases.accepted("a", 1)
    bench.clock.advance(3)
    assert spans() == ()
    bench.leases.complete("a")
    [span] = spans()
    assert span.name == "hold q"
    assert span.parent is None
    assert seconds(span.start_time) == at(began)
    assert seconds(span.end_time) == at(began + 5)
    assert [(each.name, seconds(each.timestamp)) for each in span.events] == [
        ("started", at(began + 2))
    ]
    assert span.status.status_code is StatusCode.UNSET
    assert dict(span.attributes or {}) == {
        "messaging.system": "rabbitmq",
        "messaging.operation.name": "hold",
        "messaging.destination.name": "q",
        "messaging.message.id": "id-a",
        "celery.task_name": "t",
        "celery.lease.worker": "w1@host",
        "celery.lease.mode": "heartbeat",
        "celery.lease.deliveries": 1,
        "celery.lease.losses": 0,
        "celery.lease.ending": "completed",
    }


def test_a_loss_ends_the_span_once(bench: Bench, spans: Spans) -> None:
    """At the loss, and not when its task hears of it; it is an error with its reason."""
    beat = bench.clock.wall().timestamp()
    bench.run("a")
    bench.passed(11.0)
    loss, span = spans()
    assert span.name == "hold q"
    assert span.status.status_code is StatusCode.ERROR
    assert (span.attributes or {})["celery.lease.ending"] == "lost"
    assert (span.attributes or {})["error.type"] == "expired"
    assert (loss.name, loss.status.status_code) == ("lose q", StatusCode.ERROR)
    assert (loss.attributes or {})["messaging.operation.name"] == "lose"
    assert loss.parent == span.context
    assert seconds(loss.start_time) == at(beat)
    assert loss.end_time == span.end_time
    bench.leases.discard("a")
    assert spans() == ()


def test_a_hand_over_is_a_span_from_the_last_beat_to_the_end(bench: Bench, spans: Spans) -> None:
    """It is no error: the message is returned for another worker."""
    held = bench.run("a")
    bench.clock.advance(3)
    bench.beat(held)
    bench.passed()
    bench.clock.advance(1)
    ended = bench.clock.wall().timestamp()
    bench.leases.requeue(["a"])
    _extension, over, span = spans()
    assert (over.name, span.name) == ("hand over q", "hold q")
    assert over.status.status_code is StatusCode.UNSET
    assert over.parent == span.context
    assert (seconds(over.start_time), seconds(over.end_time)) == (at(ended - 1), at(ended))


@pytest.mark.parametrize("ending", list(Ending))
def test_every_ending_has_a_span(bench: Bench, spans: Spans, ending: Ending) -> None:
    """An error if the message is a loss or a dead letter; an orderly return is none."""
    bench.run("a")
    bench.leases._take("a", bench.held("a").lease.state, ending)
    *_, span = spans()
    failed = ending.is_loss or ending is Ending.DEAD_LETTERED
    assert (span.status.status_code is StatusCode.ERROR) is failed
    assert (span.attributes or {})["celery.lease.ending"] == str(ending)


def test_a_batch_of_extensions_is_a_span(bench: Bench, spans: Spans) -> None:
    """With how many it was for, and what the broker said; one that is not answered is an error."""
    for tag in ("a", "b"):
        bench.run(tag)
    bench.clock.advance(3)
    for tag in ("a", "b"):
        bench.beat(bench.held(tag))
    bench.passed()
    [span] = spans()
    assert (span.name, span.status.status_code) == ("extend leases", StatusCode.UNSET)
    assert (span.attributes or {})["messaging.batch.message_count"] == 2
    assert (span.attributes or {})["celery.lease.held"] == 2
    bench.driver.silent = True
    bench.clock.advance(3)
    bench.beat(bench.held("a"))
    bench.passed()
    [span] = spans()
    assert span.status.status_code is StatusCode.ERROR


def test_the_senders_span_is_the_parent(
    bench: Bench, spans: Spans, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the headers of the message; those that are no text are passed over."""
    trail = bench.leases.stats.trail
    assert trail is not None
    granted = type(trail).granted
    headers = {"traceparent": TRACE, "lease": {"extension": 3}, "retries": 0}
    monkeypatch.setattr(
        type(trail), "granted", lambda self, lease, _: granted(self, lease, headers)
    )
    bench.receive("a")
    bench.leases.complete("a")
    [span] = spans()
    assert span.parent is not None
    assert span.parent.trace_id == int("ab" * 16, 16)
    assert span.parent.span_id == int("cd" * 8, 16)


def test_nothing_is_kept_without_an_exporter(bench: Bench) -> None:
    """Nor while it does not come to its work: what it does not take in time is dropped."""
    bench.run("a")
    bench.leases.complete("a")
    assert bench.leases.stats.trail is None


def test_what_an_exporter_leaves_is_bounded(bench: Bench, spans: Spans) -> None:
    """The oldest fall out; headers go with their leases."""
    trail: Any = bench.leases.stats.trail
    trail.past = type(trail.past)(maxlen=3)
    for number in range(5):
        bench.run(f"t{number}")
        bench.leases.complete(f"t{number}")
    assert [(each.attributes or {})["messaging.message.id"] for each in spans()] == [
        "id-t2",
        "id-t3",
        "id-t4",
    ]
    assert not trail._headers


def test_traces_are_exported_only_where_a_program_uses_them(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What is wrong with them is told in one line, and keeps no worker from its work.

    A library that loads OpenTelemetry where it is installed, as redis-py does, is no use of them.
    """
    monkeypatch.delenv(exports.TRACES_TO_BE_USED, raising=False)
    assert exports.traces(bench.telemetry(), "redis") is None
    assert bench.leases.stats.trail is None
    monkeypatch.setattr(trace, "get_tracer_provider", TracerProvider)
    assert exports.traces(bench.telemetry(), "redis") is not None
    monkeypatch.setattr(otel_traces, "Exporter", lambda *_: 1 / 0)
    assert exports.traces(bench.telemetry(), "redis") is None
    assert "no traces for OpenTelemetry" in caplog.text
    caplog.clear()
    monkeypatch.delitem(sys.modules, exports.TRACES_IN_USE)
    assert exports.traces(bench.telemetry(), "redis") is None
    assert not caplog.text
