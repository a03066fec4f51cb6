"""Exports the metrics to Prometheus: on ``/metrics`` of the health server, or in a registry.

All counters are in the worker's main process, so one process is scraped, and prometheus-client's
multiprocess mode is not used: no file is written to ``PROMETHEUS_MULTIPROC_DIR``, and a forked task
process exports nothing.
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

from celery_lease.core.stats import BOUNDS
from celery_lease.observability.metrics import METRICS, WORKER, Kind, Metric
from celery_lease.observability.snapshot import Snapshot, snapshots

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["LeaseCollector"]

#: The metrics with distinct names here: a deprecated one may share the name of its successor.
FAMILIES = tuple({metric.prometheus_name: metric for metric in reversed(METRICS)}.values())[::-1]


class LeaseCollector(Collector):
    """The leases of this process's worker, for a registry.

    ::

        prometheus_client.REGISTRY.register(LeaseCollector())

    It may be registered before the worker starts. It also has the counters of extenders and
    consumers without a worker in this process; families without values are empty.
    """

    def collect(self) -> Iterator[Family]:
        """Read the workers of this process once for all metrics."""
        found = snapshots()
        return (
            _family(metric, [each for each in found if each.reads(metric.name)])
            for metric in FAMILIES
        )

    def describe(self) -> Iterator[Family]:
        """Return the families without values."""
        return (_family(metric, ()) for metric in FAMILIES)


def page(accept: str) -> tuple[str, bytes]:
    """Return the content type and the body for a scrape, by its ``Accept`` header."""
    encode, content_type = choose_encoder(accept)
    return content_type, encode(_registry)


def _family(metric: Metric, found: Iterable[Snapshot]) -> Family:
    name, labels = metric.prometheus_name, (WORKER, *metric.labels)
    if metric.kind is Kind.HISTOGRAM:
        round_trips = HistogramMetricFamily(name, metric.meaning, labels=labels)
        for each in found:
            counts = list(each.round_trips.counts)
            bounds = (*map(str, BOUNDS), "+Inf")
            buckets = list(zip(bounds, accumulate(counts), strict=True))
            round_trips.add_metric((each.worker,), buckets, each.round_trips.seconds)
        return round_trips
    cls = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
    family = cls(name, metric.meaning, labels=labels)
    for each in found:
        for values, value in metric.read(each):
            family.add_metric((each.worker, *values), value)
    return family


_registry = CollectorRegistry(auto_describe=False)
_registry.register(LeaseCollector())
