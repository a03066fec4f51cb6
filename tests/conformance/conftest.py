"""The brokers that the suite runs against: one fixture value for each driver."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.lease_desk import Bench
from harness.memory import empty_memory
from harness.places import PGMQ

if TYPE_CHECKING:
    from collections.abc import Iterator

#: What each broker's driver can do; a further driver adds a line, and below how to get a bench.
#: A test that ``needs`` more than a driver has is not made for it.
#:
#: reaps: it returns expired leases, of anybody. losses: they are no orderly returns.
#: dead_letters: it moves messages to dead-letter queues.
#: outlives: leases outlive the channel by which their message came. confirms: one that expired
#: and that nobody took is still the holder's who asks. orders: messages keep their order.
BROKERS = {
    "valkey": {"reaps", "losses", "outlives", "confirms", "orders", "dead_letters"},
    "redis_server": {"reaps", "losses", "outlives", "confirms", "orders", "dead_letters"},
    "pgmq": {"losses", "outlives", "confirms", "orders", "dead_letters"},
    "rabbitmq": {"confirms", "orders", "dead_letters"},
    "sqs": {"outlives"},
    "memory": {"reaps", "losses", "outlives", "confirms", "orders"},
}
if not PGMQ:
    del BROKERS["pgmq"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make each test for the brokers that it fits."""
    if "driver_under_test" in metafunc.fixturenames:
        needs = {need for mark in metafunc.definition.iter_markers("needs") for need in mark.args}
        names = [name for name, abilities in BROKERS.items() if needs <= abilities]
        metafunc.parametrize("driver_under_test", names, indirect=True)


@pytest.fixture
def driver_under_test(request: pytest.FixtureRequest) -> Iterator[Bench]:
    """A bench at an empty broker."""
    if request.param == "pgmq":
        bench = request.getfixturevalue("postgres").fresh_database().bench()
    elif request.param == "rabbitmq":
        bench = request.getfixturevalue("rabbitmq").bench()
        with bench.channel() as channel:
            channel.queue_delete("q")
    elif request.param == "sqs":
        bench = request.getfixturevalue("moto").empty().bench()
    elif request.param == "memory":
        bench = empty_memory()
    else:
        bench = Bench(request.getfixturevalue(request.param).fresh_url())
    yield bench
    bench.close()
