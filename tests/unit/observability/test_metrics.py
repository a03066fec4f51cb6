"""What is exported, by whom, under which names."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from kombu import Connection, Consumer, Producer, Queue
from opentelemetry.metrics import set_meter_provider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open
from prometheus_client.parser import text_string_to_metric_families as parse

from celery_lease import Heartbeat, LeaseExtender
from celery_lease.brokers.memory.driver import MemoryDriver
from celery_lease.core.errors import ReceiptHandleExpiredError
from celery_lease.core.keys import Exclusive
from celery_lease.core.stats import MOST_PAIRS, Fact, StandaloneStats, standalone
from celery_lease.health_server import metrics_page
from celery_lease.observability import otel
from celery_lease.observability.metrics import ENDINGS, METRICS, Kind
from celery_lease.observability.prometheus import LeaseCollector, page
from celery_lease.standalone.consumer import LeaseConsumer
from celery_lease.worker import telemetry as telemetry_module
from celery_lease.worker.telemetry import exports
from harness.memory import empty_memory
from unit.fake_broker import Bench
from unit.fakes import FakeClock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from celery_lease.worker.telemetry import Telemetry

PAIR = {"worker": "w1@host", "task": "t", "queue": "q"}


@pytest.fixture(autouse=True)
def alone() -> Iterator[StandaloneStats]:
    """Return what this process counts without a worker, from 0 on."""
    standalone.__init__()  # type: ignore[misc]
    yield standalone
    standalone.__init__()  # type: ignore[misc]


@pytest.fixture
def bench() -> Iterator[Bench]:
    """Return a worker that has completed one lease, lost one, and runs one that holds a key."""
    bench = Bench()
    bench.driver.capabilities = replace(bench.driver.capabilities, reaps=True)
    bench.run("lost")
    bench.run("done")
    bench.leases.complete("done")
    bench.passed(10.5)
    held = bench.run("runs")
    held.exclusive, held.holds_key = Exclusive(key="k"), True
    bench.leases.stats.parked("t", "id-parked", "q", "k", "id-runs")
    bench.passed(2.5)
    bench.driver.meanwhile = lambda: bench.clock.advance(0.02)
    bench.beat(held)
    bench.passed(0.5)
    yield bench
    bench.leases.close()


@pytest.fixture
def telemetry(bench: Bench) -> Iterator[Telemetry]:
    """Return what that worker shows, while it runs."""
    telemetry = bench.telemetry(stalled=3, disowned=2, stuck=1)
    telemetry.reaped.recovered, telemetry.reaped.stale, telemetry.reaped.runs = 4, 2.5, 9
    telemetry.reaped.parked = {"q": 2}
    telemetry.stats.key_wait = 7.5
    telemetry_module.begin(telemetry)
    yield telemetry
    telemetry_module.end(telemetry)


def scraped(accept: str = "") -> dict[str, float]:
    """Return all samples of a scrape, by their names with all labels."""
    content_type, body = page(accept)
    families = (parse_open if "openmetrics" in content_type else parse)(body.decode())
    return {
        f"{sample.name}{sorted(sample.labels.items())}": sample.value
        for family in families
        for sample in family.samples
    }


def key(name: str, **labels: str) -> str:
    return f"celery_lease_{name}{sorted(labels.items())}"


@pytest.mark.usefixtures("telemetry")
@pytest.mark.parametrize("accept", ["", "application/openmetrics-text; version=1.0.0"])
def test_a_scrape_tells_every_number_by_prometheus_names(accept: str) -> None:
    """In both of its formats; units and totals are in the names."""
    found = scraped(accept)
    me, identity = {"worker": "w1@host"}, telemetry_module.running()[0].leases.worker_id
    expected = {
        key("held", **PAIR, state="running"): 1,
        key("held", **PAIR, state="lost"): 1,
        key("granted_total", **PAIR): 3,
        key("started_total", **PAIR): 3,
        key("beats_seen_total", **PAIR): 3,
        key("extensions_total", **PAIR, answer="held"): 1,
        key("extensions_total", **PAIR, answer="unknown"): 0,
        key("lost_total", **PAIR, reason="expired"): 1,
        key("lost_total", **PAIR, reason="taken"): 0,
        key("ended_total", **PAIR, ending="completed"): 1,
        key("ended_total", **PAIR, ending="dead_lettered"): 0,
        key("keys_held", **PAIR): 1,
        key("keys_parked", **me, worker_id=identity, queue="q"): 2,
        key("keys_parkings_total", **PAIR): 1,
        key("keys_waited_count_total", **PAIR): 0,
        key("keys_waited_duration_seconds_total", **me): 7.5,
        key("reaper_recovered_count_total", **me, worker_id=identity): 4,
        key("reaper_stale_duration_seconds_total", **me, worker_id=identity): 2.5,
        key("reaper_runs_total", **me, worker_id=identity): 9,
        key("reaper_recovered_total", **me): 4,  # deprecated
        key("watchdog_stalled_total", **me): 3,
        key("watchdog_disowned_total", **me): 2,
        key("slots_stuck", **me): 1,
        key("ready", **me): 0,
        key("broker_round_trip_seconds_bucket", **me, le="0.01"): 0,
        key("broker_round_trip_seconds_bucket", **me, le="0.025"): 1,
        key("broker_round_trip_seconds_bucket", **me, le="+Inf"): 1,
        key("broker_round_trip_seconds_count", **me): 1,
    }
    assert {name: found.get(name) for name in expected} == expected
    assert found[key("broker_round_trip_seconds_sum", **me)] == pytest.approx(0.02)
    assert found[key("oldest_beat_age_seconds", **me)] == pytest.approx(0.52)
    assert found[key("least_remaining_seconds", **me)] == pytest.approx(9.48)


@pytest.mark.usefixtures("telemetry")
def test_a_broker_that_returns_messages_itself_has_no_sweeps(bench: Bench) -> None:
    """An alert on none would never be silent there."""
    assert any("reaper" in name for name in scraped())
    bench.driver.capabilities = replace(bench.driver.capabilities, reaps=False)
    assert not [name for name in scraped() if "reaper" in name]


@pytest.mark.usefixtures("telemetry")
def test_series_are_bounded_and_there_before_their_first_step(bench: Bench) -> None:
    """Of leases that are held, too: whatever the names of tasks and queues are."""
    for number in range(MOST_PAIRS + 30):
        bench.receive(str(number), task=f"t{number}")
    found = scraped()
    held = {name: value for name, value in found.items() if name.startswith("celery_lease_held")}
    assert len(held) == 3 * (MOST_PAIRS + 1)
    # One of the pairs is that of the fixture, which holds two leases itself.
    assert sum(held.values()) == MOST_PAIRS + 30 + 2
    others = {"worker": "w1@host", "task": "(other)", "queue": "(other)"}
    assert found[key("held", **others, state="reserved")] == 31
    assert found[key("held", **others, state="running")] == 0


@pytest.mark.usefixtures("telemetry")
def test_a_registry_of_the_user_s_own_can_have_them_too() -> None:
    """Registering reads nothing: it may be done long before a worker starts."""
    registry = CollectorRegistry(auto_describe=True)
    registry.register(LeaseCollector())
    with pytest.raises(ValueError, match="Duplicated"):
        registry.register(LeaseCollector())
    assert b"celery_lease_granted_total{" in generate_latest(registry)


def test_without_a_worker_there_are_names_and_no_numbers() -> None:
    """As in a process that only sends tasks."""
    assert scraped() == {}
    families = [family.name for family in LeaseCollector().collect()]
    assert len(families) == len({metric.prometheus_name for metric in METRICS})


@pytest.mark.usefixtures("telemetry")
def test_a_forked_child_counts_nothing_twice(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Nor does anybody write to the directory of prometheus-client's multiprocess mode."""
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    assert scraped()
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(writer, b"%d" % len(scraped()))
        os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(reader, 10) == b"0"
    os.close(reader)
    os.close(writer)
    assert list(tmp_path.iterdir()) == []


def test_without_prometheus_client_the_page_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A status of its own, so that a scraper shows the target as failing."""
    for name in [name for name in sys.modules if name.startswith("prometheus_client")]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "celery_lease.observability.prometheus")
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    status, content_type, body = metrics_page("")
    assert (status, content_type.partition(";")[0]) == (501, "text/plain")
    assert b"install celery-lease[prometheus]" in body


@pytest.fixture(scope="module")
def reader() -> InMemoryMetricReader:
    """Return what a program that uses OpenTelemetry has set up; once, as its API wants it."""
    reader = InMemoryMetricReader()
    set_meter_provider(MeterProvider([reader]))
    return reader


def exported(reader: InMemoryMetricReader) -> dict[str, Any]:
    data = reader.get_metrics_data()
    return {
        metric.name: metric
        for resource in (data.resource_metrics if data else ())
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


def test_open_telemetry_gets_the_same_by_its_own_names(
    bench: Bench, telemetry: Telemetry, reader: InMemoryMetricReader
) -> None:
    """Units apart from the names; two workers in one process make no second instrument."""
    exports.begin(telemetry)
    exports.begin(telemetry)
    held = bench.held("runs")
    bench.driver.meanwhile = lambda: bench.clock.advance(0.3)
    bench.clock.advance(3.0)
    bench.beat(held)
    bench.passed()
    found = exported(reader)
    assert set(found) == {metric.otel_name for metric in METRICS}
    assert {name: found[name].unit for name in found} == {
        metric.otel_name: metric.unit for metric in METRICS
    }
    points = found["celery.lease.ended"].data.data_points
    assert {point.attributes["ending"] for point in points} == set(ENDINGS)
    (completed,) = [p for p in points if p.attributes == {**PAIR, "ending": "completed"}]
    assert completed.value == 1
    assert found["celery.lease.ended"].data.is_monotonic
    (trip,) = found["celery.lease.broker.round_trip"].data.data_points
    assert (trip.count, trip.sum) == (1, pytest.approx(0.3))
    telemetry_module.end(telemetry)
    left = exported(reader)
    assert {name for name in left if left[name].data.data_points} == {
        "celery.lease.broker.round_trip"
    }


def test_what_is_wrong_with_open_telemetry_keeps_no_worker_from_its_work(
    telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is told in one line."""

    def fail(_: object) -> None:
        raise TypeError("too old")

    monkeypatch.setattr(otel, "begin", fail)
    exports.begin(telemetry)
    assert "no metrics for OpenTelemetry" in caplog.text


def test_nothing_is_loaded_for_a_program_that_does_not_use_open_telemetry(
    telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although it is installed."""
    monkeypatch.delenv(exports.OTEL_TO_BE_USED, raising=False)
    monkeypatch.delitem(sys.modules, exports.OTEL_IN_USE)
    monkeypatch.setattr(otel, "begin", lambda _: pytest.fail("loaded"))
    exports.begin(telemetry)


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_names_follow_the_conventions_of_both(metric: Any) -> None:
    """Lower case; a counter's total and a unit in Prometheus' name only, a unit in UCUM."""
    assert re.fullmatch(r"celery\.lease(\.[a-z][a-z_]*)+", metric.otel_name)
    assert re.fullmatch(r"celery_lease(_[a-z]+)+", metric.prometheus_name)
    assert metric.prometheus_name.endswith("_total") == (metric.kind is Kind.COUNTER)
    assert ("_seconds" in metric.prometheus_name) == (metric.unit == "s")
    assert re.fullmatch(r"s|\{[a-z]+\}", metric.unit)
    assert metric.meaning[-1] != "."


# ------------------------------------------------------------------------------ without a worker


class Receipt:
    """A message with a receipt, whose broker may fail."""

    id = "m1"
    failure: Exception | None = None

    def extend_visibility(self, seconds: int) -> None:
        assert seconds > 0
        if self.failure:
            raise self.failure


def of(name: str) -> Any:
    """Return the samples of one metric that are not 0, by their labels' values."""
    families = parse(page("")[1].decode())
    return {
        tuple(
            value for key, value in sorted(sample.labels.items()) if key != "worker"
        ): sample.value
        for sample in (sample for family in families for sample in family.samples)
        if sample.name == name and sample.value
    }


def test_an_extender_counts_its_extensions(alone: StandaloneStats) -> None:
    """By the broker's answer, each with the time that it took."""
    message, heartbeat = Receipt(), Heartbeat()
    for message.failure in (None, ReceiptHandleExpiredError("m1"), OSError("down"), None):
        with LeaseExtender().attach(message, heartbeat):
            heartbeat.beat()
    assert of("celery_lease_extensions_total") == {
        ("held", "", "(extender)"): 2,
        ("lost", "", "(extender)"): 1,
        ("unknown", "", "(extender)"): 1,
    }
    assert of("celery_lease_broker_round_trip_seconds_count") == {(): 4}
    assert all(f"('worker', '{alone.worker}')" in sample for sample in scraped())


def test_a_consumer_counts_what_becomes_of_its_leases(alone: StandaloneStats) -> None:
    """Breaks when an extension by an extender counts twice, or a lost lease as completed."""
    empty_memory()
    clock, connection = FakeClock(), Connection("memory://")
    channel, driver, messages = connection.channel(), MemoryDriver(clock), []
    leases = LeaseConsumer(driver, 10.0, clock)
    driver.lease_messages(channel, leases, clock)
    Consumer(channel, [Queue("q")], on_message=messages.append).consume()
    for body in "abc":
        Producer(connection.channel()).publish(body, routing_key="q")
        connection.drain_events(timeout=1)
    done, lost, _ = messages
    heartbeat = Heartbeat()
    with LeaseExtender().attach(leases.lease_of(done), heartbeat):
        heartbeat.beat()
    done.ack()
    late = leases.lease_of(lost)
    clock.advance(11)
    driver.reap(limit=1)
    for _ in range(2):
        with pytest.raises(ReceiptHandleExpiredError):
            late.extend_visibility(10)
    lost.ack()
    assert of("celery_lease_granted_total") == {("q", "(consumer)"): 3}
    assert of("celery_lease_ended_total") == {("completed", "q", "(consumer)"): 1}
    assert of("celery_lease_lost_total") == {("q", "expired", "(consumer)"): 1}
    assert of("celery_lease_held") == {("q", "running", "(consumer)"): 1}
    assert of("celery_lease_extensions_total") == {
        ("held", "q", "(consumer)"): 1,
        ("lost", "q", "(consumer)"): 2,
    }
    assert alone.round_trips.counts[0] == 3
    connection.release()


def test_a_forked_child_counts_for_itself(alone: StandaloneStats) -> None:
    """Breaks when a child shows its parent's numbers again, or waits for a lock held there."""
    alone.count(Fact.GRANTED, alone.CONSUMER, "q")
    reader, writer = os.pipe()
    with alone._lock:
        pid = os.fork()
        if pid == 0:
            standalone.count(Fact.GRANTED, alone.CONSUMER, "q")
            os.write(writer, b"%d" % sum(standalone.counts.values()))
            os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(reader, 10) == b"1"
    os.close(reader)
    os.close(writer)


def test_opentelemetry_sees_it_too(alone: StandaloneStats, reader: InMemoryMetricReader) -> None:
    """Without a worker that starts, a program says so once."""
    otel.begin()
    with LeaseExtender().attach(Receipt(), heartbeat := Heartbeat()):
        heartbeat.beat()
    found = exported(reader)
    (point,) = [
        point
        for point in found["celery.lease.extensions"].data.data_points
        if point.attributes["worker"] == alone.worker and point.value
    ]
    assert (point.attributes["answer"], point.value) == ("held", 1)
