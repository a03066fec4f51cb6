"""The growth is still measured, with few leases; and the page shows what was measured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from celery_lease.core.policy import LeasePolicy
from growth import chart, fleet, page, traffic
from growth.__main__ import DATA, PARTS, SIZES, load
from growth.measure import Point, costs, measure
from unit.project.test_docs import blocks

if TYPE_CHECKING:
    from harness.brokers import RedisServer

DOCS = Path(__file__).parents[2] / "docs"


def point(calls: float, renewals: float, server_cpu: float) -> Point:
    """Return a point of a broker."""
    return Point(
        broker="valkey",
        workers=1,
        leases=1,
        calls=calls,
        renewals=renewals,
        failed=0,
        server_cpu=server_cpu,
        keeper_cpu=1.0,
        lag=None,
        bytes_each=None,
    )


def test_the_costs_are_those_that_the_points_were_made_of() -> None:
    """0.2 %, 100 µs a call and 5 µs an extension; a part below nothing is left out."""
    sizes = [(1, 1), (1, 1000), (20, 20), (20, 2000)]
    points = [point(c, r, 0.2 + 100 * (c * 100e-6 + r * 5e-6)) for c, r in sizes]
    assert costs(points) == pytest.approx((0.2, 100, 5))
    points = [point(c, r, 0.2 + 100 * (c * 100e-6 - r * 0.1e-6)) for c, r in sizes]
    assert costs(points)[2] == 0
    assert costs(points)[1] > 0


def test_what_a_server_carries_takes_the_share_that_is_planned_with() -> None:
    """By the same formula as the arithmetic."""
    found = load((DOCS / DATA).read_text())
    plan = page.Plan("valkey", found["leases"], found["messages"], found["idle"])
    held = plan.leases(64, page.INTERVAL)
    assert plan.extending(64, held / page.INTERVAL) == pytest.approx(page.SHARE, rel=0.01)


def test_the_page_shows_what_was_measured() -> None:
    """Its tables and its picture are not of another run than the data."""
    found = load((DOCS / DATA).read_text())
    assert found.keys() == PARTS.keys()
    sizes = {(each.broker, each.workers, each.leases) for each in found["leases"]}
    assert sizes <= {(broker, *size) for broker, each in SIZES.items() for size in each}
    text = (DOCS / page.PAGE).read_text()
    tables = page.tables(found["leases"], found["messages"], found["idle"])
    assert page.put(text, tables) == text
    assert chart.svg(found["leases"]) == (DOCS / "capacity.svg").read_text()


def test_a_table_without_a_place_is_refused() -> None:
    """Breaks when a page silently keeps an old table."""
    with pytest.raises(ValueError, match="costs"):
        page.put("<!-- leases -->\n<!-- /leases -->", {"costs": "| 1 |\n"})


@pytest.mark.parametrize("broker", SIZES)
def test_keepers_extend_at_each_broker(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, broker: str
) -> None:
    """Breaks when a broker's leases cannot be claimed in numbers, or its server is not read."""
    monkeypatch.setattr(fleet, "POLICY", LeasePolicy(extension=60.0, interval=1.0))
    found = measure(request, broker, workers=2, leases=3, seconds=2.0, quiet=True)
    assert found.failed == 0
    assert found.renewals > 0
    assert found.server_cpu > 0
    assert found.lag is not None


def test_idle_workers_have_connections(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Breaks when a worker's connections are not seen at the server."""
    found = traffic.idle(request, "valkey", "leased", tmp_path, seconds=0.5, workers=1)
    assert found.connections >= 2


def test_the_senders_example_divides_messages_among_servers(
    valkey: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same subject always goes to the same shard."""
    (text,) = [each for each in blocks((DOCS / page.PAGE).read_text()) if "SHARDS" in each]
    example: dict[str, Any] = {}
    exec(text, example)  # noqa: S102  (our own page)
    urls = [valkey.fresh_url() for _ in example["URLS"]]
    for shard, url in zip(example["SHARDS"], urls, strict=True):
        monkeypatch.setattr(shard.conf, "broker_url", url)
    for number in range(20):
        example["send"]("proj.work", f"customer-{number % 10}")
    sizes = []
    for shard, url in zip(example["SHARDS"], urls, strict=True):
        with valkey.client(int(url.rpartition("/")[2])) as client:
            sizes.append(client.llen("celery"))
        shard.close()
    assert sum(sizes) == 20
    assert min(sizes) >= 2
    assert all(size % 2 == 0 for size in sizes)
