"""The metrics for Prometheus: on ``/metrics`` of the health server, or in a registry of one's own.

All counts live in the worker's main process, so one process is scraped and prometheus-client's
multiprocess mode is neither needed nor touched: no file is written to ``PROMETHEUS_MULTIPROC_DIR``,
and a forked task process shows nothing.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric as Family,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from celery_lease.observability.metrics import METRICS, WORKER, Kind, Metric, Snapshot
from celery_lease.worker import vitals
from celery_lease.worker.tally import BOUNDS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class LeaseCollector(Collector):
    """The leases of this process's worker, for a registry.

    ::

        prometheus_client.REGISTRY.register(LeaseCollector())

    May be registered before the worker starts, and yields empty families where none runs.
    """

    def collect(self) -> Iterator[Family]:
        """Read the workers of this process once for all metrics."""
        snapshots = [Snapshot(each) for each in vitals.running()]
        return (_family(metric, snapshots) for metric in METRICS)

    def describe(self) -> Iterator[Family]:
        """Tell names without reading anything."""
        return (_family(metric, ()) for metric in METRICS)


def page(accept: str) -> tuple[str, bytes]:
    """Return what a scrape gets, and its content type, by what its client accepts."""
    encode, content_type = choose_encoder(accept)
    return content_type, encode(_registry)


def _family(metric: Metric, snapshots: Iterable[Snapshot]) -> Family:
    name, labels = metric.prometheus_name, (WORKER, *metric.labels)
    if metric.kind is Kind.HISTOGRAM:
        trips = HistogramMetricFamily(name, metric.meaning, labels=labels)
        for each in snapshots:
            counts = list(each.vitals.tally.trips.counts)
            bounds = (*map(str, BOUNDS), "+Inf")
            buckets = list(zip(bounds, accumulate(counts), strict=True))
            trips.add_metric((each.vitals.worker,), buckets, each.vitals.tally.trips.seconds)
        return trips
    cls = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
    family = cls(name, metric.meaning, labels=labels)
    for each in snapshots:
        for values, value in metric.read(each):
            family.add_metric((each.vitals.worker, *values), value)
    return family


_registry = CollectorRegistry(auto_describe=False)
_registry.register(LeaseCollector())
