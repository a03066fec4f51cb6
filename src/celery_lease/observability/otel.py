"""Exports the metrics by OpenTelemetry, with observable instruments for the user's own reader.

It neither configures OpenTelemetry nor starts a thread. A provider that is set after the worker's
start is used from then on: until then the instruments are the API's proxies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from opentelemetry.metrics import CallbackOptions, Histogram, Meter, Observation, get_meter

import celery_lease
from celery_lease.core.stats import BOUNDS, standalone
from celery_lease.observability.metrics import METRICS, WORKER, Kind, Metric
from celery_lease.observability.snapshot import snapshots

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery_lease.worker.telemetry import Telemetry

_round_trips: list[Histogram] = []  # created with the other instruments, once in a process


def begin(worker: Telemetry | None = None) -> None:
    """Export a worker that starts, or the extenders and consumers of this process.

    For consumers without a worker call it once, after the meter provider was set.
    """
    if not _round_trips:
        _instrument(get_meter("celery_lease", celery_lease.__version__))
    name, round_trips = (
        (standalone.worker, standalone.round_trips)
        if worker is None
        else (worker.worker, worker.stats.round_trips)
    )
    histogram, attributes = _round_trips[0], {WORKER: name}
    round_trips.observer = lambda seconds: histogram.record(seconds, attributes)


def _instrument(meter: Meter) -> None:
    make: dict[Kind, Callable[..., object]] = {
        Kind.COUNTER: meter.create_observable_counter,
        Kind.GAUGE: meter.create_observable_gauge,
        Kind.SUM: meter.create_observable_up_down_counter,
    }
    for metric in METRICS:
        name, unit, meaning = metric.otel_name, metric.unit, metric.meaning
        if metric.kind is Kind.HISTOGRAM:
            _round_trips.append(
                meter.create_histogram(
                    name, unit, meaning, explicit_bucket_boundaries_advisory=list(BOUNDS)
                )
            )
        else:
            make[metric.kind](name, [_observer(metric)], unit, meaning)


def _observer(metric: Metric) -> Callable[[CallbackOptions], Iterator[Observation]]:
    def observe(_: CallbackOptions) -> Iterator[Observation]:
        # A forked child, which may export too, has no worker.
        for each in (each for each in snapshots() if each.reads(metric.name)):
            for values, value in metric.read(each):
                labels = dict(zip((WORKER, *metric.labels), (each.worker, *values), strict=True))
                yield Observation(value, labels)

    return observe
