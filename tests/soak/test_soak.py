"""Nothing grows with the number of runs beyond what grows in stock Celery: a short soak.

``python -m tests.soak`` does it by hand, for as long as one likes.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
import redis

from harness.places import PGMQ, place_of
from harness.waiting import eventually
from harness.workers import WorkerFleet
from soak.run import MEBI, POOLS, SHARES, Side, Soak

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from harness.brokers import RedisServer
    from harness.places import Place

pytestmark = [pytest.mark.timeout(900), pytest.mark.long(5)]

#: Pool, broker and number of runs. What one run keeps shows in the blocks, however few there are.
SOAKS = [
    ("prefork", "valkey", 20_000),
    ("threads", "valkey", 1_500),
    ("solo", "valkey", 1_500),
    ("gevent", "valkey", 1_500),
    ("eventlet", "valkey", 1_500),
    ("threads", "rabbitmq quorum", 1_500),
    *(("gevent", each, 1_500) for each in PGMQ),
    ("solo", "sqs", 750),
]
#: Runs whose first fifth is enough for a process to have all that it will ever load.
ENOUGH = 20_000
#: Blocks of memory that a run may keep: a leak of one object is one and more.
BLOCKS_A_RUN = 0.5
CUTS, BLOCKS_A_CUT = 50, 5
#: Keys at the broker that appear once, when something happens for the first time.
SPARE_KEYS = 3
#: What a process may have more at some moment: blocks of a cache, say, that is filled late.
SPARE_BLOCKS = 1_000


@pytest.fixture
def make_soak(
    request: pytest.FixtureRequest, valkey: RedisServer, tmp_path: Any
) -> Iterator[Callable[[str, str], Soak]]:
    """Return what starts both sides on a pool and a broker."""
    fleets = []

    def make(pool: str, broker: str) -> Soak:
        sides = []
        for kind in ("leased", "stock"):
            fleet = WorkerFleet(tmp_path / kind, kind)
            fleet.directory.mkdir()
            fleets.append(fleet)
            place = place_of(broker, request, visibility=60, lease_publish_progress=0.5)
            sides.append(Side(place, valkey.fresh_url(), fleet, pool, kind))
        return Soak(*sides)

    yield make
    for fleet in fleets:
        fleet.close()


@pytest.mark.parametrize(("pool", "broker", "runs"), SOAKS)
def test_nothing_grows_with_the_runs(
    make_soak: Callable[[str, str], Soak], valkey: RedisServer, pool: str, broker: str, runs: int
) -> None:
    """Success, failure, retry, reject, checkpoint, progress, lost lease: all end without a rest."""

    def keys(place: Place) -> int:
        if broker != "valkey":
            return 0
        # A delivery that was lost is remembered for a week, for ``celery lease explain``.
        with valkey.client(place.setup.database) as client:
            return sum(b".history." not in key for key in client.scan_iter())

    soak = make_soak(pool, broker)
    soak.run(runs, keys)
    at_once = 0 if POOLS[pool] == 1 else POOLS[pool]
    # Where both are one process, it is the main loop that looks while nothing runs.
    for process in ("task", "main") if pool == "prefork" else ("main",):
        bound = BLOCKS_A_RUN * runs + SPARE_BLOCKS
        more = soak.settle(process, bound, keys)
        text = f"{process}: {more}\n{soak}"
        assert more.blocks < bound, text
        if runs >= ENOUGH:
            assert more.memory <= MEBI, text
        assert more.threads <= at_once, text
        assert more.descriptors <= at_once + soak.threads(process), text
    assert soak.leased.keys[-1] <= soak.leased.keys[0] + SPARE_KEYS, soak.leased.keys


def test_nothing_grows_with_cut_connections(
    make_soak: Callable[[str, str], Soak], valkey: RedisServer
) -> None:
    """Nor with the times at which a worker lost its broker."""

    def cut(side: Side) -> None:
        with valkey.client(side.place.setup.database) as client:
            for _ in range(CUTS // SHARES):
                for each in client.client_list():
                    if each["db"] == str(side.place.setup.database):
                        with suppress(redis.ResponseError):  # it has gone by itself
                            client.client_kill_filter(_id=each["id"], skipme=True)
                side.send(1)
                eventually(side.is_done, 60, what="it works on")

    soak = make_soak("prefork", "valkey")
    soak.run(SHARES * 50, meanwhile=cut, before=ENOUGH // SHARES // 2)
    for process in ("task", "main"):
        bound = CUTS * BLOCKS_A_CUT + SPARE_BLOCKS
        more = soak.settle(process, bound)
        text = f"{process}: {more}\n{soak}"
        assert more.blocks < bound, text
        assert more.memory <= MEBI, text
        assert more.threads <= 0, text
        assert more.descriptors <= soak.threads(process), text
