"""The metrics for OpenTelemetry: observable instruments, read when the user's own reader exports.

Nothing here configures OpenTelemetry or starts a thread. A provider that is set only after the
worker has started is taken up all the same: until then the instruments are the API's proxies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from opentelemetry.metrics import CallbackOptions, Meter, Observation, get_meter

import celery_lease
from celery_lease.observability.metrics import METRICS, WORKER, Kind, Metric, Snapshot
from celery_lease.worker import vitals
from celery_lease.worker.tally import BOUNDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from opentelemetry.metrics import Histogram

    from celery_lease.worker.vitals import Vitals

_trips: list[Histogram] = []  # made with the other instruments, once in a process


def begin(worker: Vitals) -> None:
    """Let OpenTelemetry see a worker that starts."""
    if not _trips:
        _instrument(get_meter("celery_lease", celery_lease.__version__))
    histogram, attributes = _trips[0], {WORKER: worker.worker}
    worker.tally.trips.told = lambda seconds: histogram.record(seconds, attributes)


def _instrument(meter: Meter) -> None:
    make: dict[Kind, Callable[..., object]] = {
        Kind.COUNTER: meter.create_observable_counter,
        Kind.GAUGE: meter.create_observable_gauge,
        Kind.SUM: meter.create_observable_up_down_counter,
    }
    for metric in METRICS:
        name, unit, meaning = metric.otel_name, metric.unit, metric.meaning
        if metric.kind is Kind.HISTOGRAM:
            _trips.append(
                meter.create_histogram(
                    name, unit, meaning, explicit_bucket_boundaries_advisory=list(BOUNDS)
                )
            )
        else:
            make[metric.kind](name, [_observer(metric)], unit, meaning)


def _observer(metric: Metric) -> Callable[[CallbackOptions], Iterator[Observation]]:
    def observe(_: CallbackOptions) -> Iterator[Observation]:
        for each in vitals.running():  # none in a forked child, which may export too
            for values, value in metric.read(Snapshot(each)):
                labels = dict(zip((WORKER, *metric.labels), (each.worker, *values), strict=True))
                yield Observation(value, labels)

    return observe
