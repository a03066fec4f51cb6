"""What docs/observability.md says is what is exported, sent and logged."""

from __future__ import annotations

import re
from pathlib import Path

from celery_lease.observability.metrics import ENDINGS, METRICS, REASONS
from celery_lease.worker.entries import Ending
from celery_lease.worker.telemetry import stats

TEXT = (Path(__file__).parents[3] / "docs" / "observability.md").read_text()


def table() -> str:
    """Return the table of metrics."""
    lines = ["| Prometheus | OpenTelemetry | unit | labels | meaning |", "| --- " * 5 + "|"]
    for metric in METRICS:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        lines.append(
            f"| `{metric.prometheus_name}` | `{metric.otel_name}` | `{metric.unit}` "
            f"| {labels} | {metric.meaning} |"
        )
    return "\n".join(lines)


def test_the_table_of_metrics_is_the_one_in_the_code() -> None:
    """Names, units, labels and meanings; write :func:`table` between the marks to mend it."""
    written = TEXT.partition("<!-- metrics -->")[2].partition("<!-- /metrics -->")[0]
    assert written.strip() == table()


def test_every_value_of_a_label_is_named() -> None:
    """An alert is written for them."""
    values = {*REASONS, *ENDINGS}
    assert {value for value in values if f"`{value}`" not in TEXT} == set()


def test_every_event_and_every_ending_is_named() -> None:
    """By the types that are sent."""
    events = {value for name, value in vars(stats).items() if name.endswith("_EVENT")}
    assert set(re.findall(r"^\| `(lease-[a-z]+)`", TEXT, re.MULTILINE)) == events
    assert {ending for ending in Ending if f"`{ending}`" not in TEXT} == set()
