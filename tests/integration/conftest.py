"""A database on each broker that has them, for the tests of its driver."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.lease_desk import Bench

if TYPE_CHECKING:
    from collections.abc import Iterator

    import redis

    from harness.brokers import RedisServer
    from harness.postgres import Database, PostgresServer


@pytest.fixture(params=["valkey", "redis_server"])
def both_servers(request: pytest.FixtureRequest) -> RedisServer:
    """Each kind of server in turn."""
    server: RedisServer = request.getfixturevalue(request.param)
    return server


@pytest.fixture
def server(valkey: RedisServer) -> RedisServer:
    """The server of the bench; in a module for both kinds, ``both_servers``."""
    return valkey


@pytest.fixture
def bench(server: RedisServer) -> Iterator[Bench]:
    """A database of this test alone."""
    bench = Bench(server.fresh_url())
    yield bench
    bench.close()


@pytest.fixture
def client(server: RedisServer, bench: Bench) -> Iterator[redis.Redis]:
    """What the database of the bench really holds."""
    with server.client(int(bench.url.rpartition("/")[2])) as client:
        yield client


@pytest.fixture
def database(postgres: PostgresServer) -> Database:
    """A database with pgmq, of this test alone."""
    return postgres.fresh_database()
