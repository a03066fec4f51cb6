"""The brokers that the suite runs against: one fixture value for each driver."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.lease_desk import Bench

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.brokers import RedisServer


@pytest.fixture(params=["valkey", "redis_server"])
def driver_under_test(request: pytest.FixtureRequest) -> Iterator[Bench]:
    """A bench at an empty broker; a further driver adds a parameter and how to get one."""
    server: RedisServer = request.getfixturevalue(request.param)
    bench = Bench(server.fresh_url())
    yield bench
    bench.close()
