"""The recipes for fenced writes, each on its real store: a former holder changes nothing."""

from __future__ import annotations

import itertools
import random
import threading
from typing import TYPE_CHECKING, Any, Protocol

import pytest
from examples.fenced_writes import StaleError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from harness.brokers import RedisServer
    from harness.postgres import PostgresServer

JOB = "video-1"


class Store(Protocol):
    """A recipe at work."""

    def write(self, token: int, value: str) -> None:
        """Write as a holder, on a connection that no other thread uses."""
        ...

    def read(self) -> tuple[int, str]:
        """Return the token and the value that are stored."""
        ...


class Postgres:
    """The recipe for psycopg."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._run(lambda connection: connection.execute(self.recipe.SCHEMA))

    @property
    def recipe(self) -> Any:
        from examples.fenced_writes import postgres

        return postgres

    def _run(self, what: Callable[[Any], Any]) -> Any:
        import psycopg

        with psycopg.connect(self._dsn) as connection:
            return what(connection)

    def write(self, token: int, value: str) -> None:
        self._run(lambda connection: self.recipe.write(connection, JOB, token, value))

    def read(self) -> tuple[int, str]:
        found: tuple[int, str] = self._run(
            lambda connection: connection.execute("SELECT token, value FROM results").fetchone()
        )
        return found


class SqlAlchemy:
    """The recipe for SQLAlchemy."""

    def __init__(self, url: str) -> None:
        from examples.fenced_writes import sqlalchemy_core
        from sqlalchemy import create_engine

        self._recipe = sqlalchemy_core
        self.engine = create_engine(url)
        sqlalchemy_core.Base.metadata.create_all(self.engine)

    def write(self, token: int, value: str) -> None:
        self._recipe.write(self.engine, JOB, token, value)

    def read(self) -> tuple[int, str]:
        from sqlalchemy import select

        table = self._recipe.Result
        with self.engine.connect() as connection:
            token, value = connection.execute(select(table.token, table.value)).one()
            return token, value


class Django:
    """The recipe for Django's ORM."""

    def __init__(self) -> None:
        from examples.fenced_writes import django_orm

        self._recipe = django_orm

    def write(self, token: int, value: str) -> None:
        from django.db import connections

        try:
            self._recipe.write(JOB, token, value)
        finally:
            connections.close_all()

    def read(self) -> tuple[int, str]:
        found = self._recipe.Result.objects.get(job=JOB)
        return found.token, found.value


class Redis:
    """The recipe for Redis."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def write(self, token: int, value: str) -> None:
        from examples.fenced_writes import redis_script

        redis_script.write(self._client, JOB, token, value)

    def read(self) -> tuple[int, str]:
        found = self._client.hgetall(f"result:{JOB}")
        return int(found[b"token"]), found[b"value"].decode()


class ObjectStore:
    """The recipe for S3."""

    def __init__(self, s3: Any) -> None:
        self.s3 = s3
        s3.create_bucket(Bucket="bucket")

    def write(self, token: int, value: str) -> None:
        from examples.fenced_writes import object_store

        object_store.write(self.s3, "bucket", JOB, token, value.encode())

    def read(self) -> tuple[int, str]:
        from examples.fenced_writes import object_store

        token, value = object_store.read(self.s3, "bucket", JOB)
        return token, value.decode()


@pytest.fixture
def postgres_store(postgres: PostgresServer) -> Postgres:
    return Postgres(postgres.fresh_database().dsn)


@pytest.fixture
def sqlalchemy_store(postgres: PostgresServer) -> Iterator[SqlAlchemy]:
    pytest.importorskip("sqlalchemy", reason="SQLAlchemy is not installed")
    dsn = postgres.fresh_database().dsn
    store = SqlAlchemy(dsn.replace("postgresql://", "postgresql+psycopg://"))
    yield store
    store.engine.dispose()


@pytest.fixture
def django_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Django]:
    django = pytest.importorskip("django", reason="Django is not installed")
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "examples.django_app.settings")
    django.setup()
    from django.db import connection, connections
    from examples.fenced_writes.django_orm import Result

    connections.close_all()
    monkeypatch.setitem(connections.settings["default"], "NAME", str(tmp_path / "db.sqlite3"))
    monkeypatch.setitem(connection.settings_dict, "NAME", str(tmp_path / "db.sqlite3"))
    with connection.schema_editor() as editor:
        editor.create_model(Result)
    yield Django()
    connections.close_all()


@pytest.fixture
def redis_store(valkey: RedisServer) -> Iterator[Redis]:
    from redis import Redis as Client

    with Client.from_url(valkey.fresh_url()) as client:
        yield Redis(client)


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    pytest.importorskip("moto", reason="moto is not installed")
    from harness.moto_server import MotoServer

    with MotoServer(tmp_path_factory.mktemp("moto")).start() as server:
        yield server.client("s3")


@pytest.fixture
def s3_store(s3: Any) -> Iterator[ObjectStore]:
    store = ObjectStore(s3)
    yield store
    for found in s3.list_objects_v2(Bucket="bucket").get("Contents", []):
        s3.delete_object(Bucket="bucket", Key=found["Key"])
    s3.delete_bucket(Bucket="bucket")


DATABASES = ["postgres", "sqlalchemy", "django", "redis"]


@pytest.fixture
def store(request: pytest.FixtureRequest) -> Store:
    """The store that a test is run with."""
    found: Store = request.getfixturevalue(f"{request.param}_store")
    return found


@pytest.mark.parametrize("store", [*DATABASES, "s3"], indirect=True)
def test_a_former_holder_s_write_is_refused_and_changes_nothing(store: Store) -> None:
    """Also its second one; a newer holder and the same one again are let in."""
    store.write(2_000_000_000_000_001, "first")
    store.write(2_000_000_000_000_001, "again")
    assert store.read() == (2_000_000_000_000_001, "again")
    store.write(2_000_000_000_000_002, "newer")
    for _ in range(2):
        with pytest.raises(StaleError, match="2000000000000001 is older"):
            store.write(2_000_000_000_000_001, "late")
    assert store.read() == (2_000_000_000_000_002, "newer")
    store.write(2_000_000_000_000_002, "newer")
    assert store.read() == (2_000_000_000_000_002, "newer")


@pytest.mark.parametrize("store", DATABASES, indirect=True)
def test_of_holders_that_write_at_once_the_newest_remains(store: Store) -> None:
    """Whatever the order, also into nothing, and nobody fails but by being refused."""
    tokens = list(range(1, 9))
    random.Random(1).shuffle(tokens)
    barrier, errors = threading.Barrier(len(tokens)), []

    def hold(token: int) -> None:
        barrier.wait(10)
        for number in range(5):
            try:
                store.write(token, f"{token}-{number}")
            except StaleError:
                return
            except Exception as exc:  # noqa: BLE001  (told by the test's thread)
                errors.append(exc)

    threads = [threading.Thread(target=hold, args=(token,)) for token in tokens]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    assert store.read() == (8, "8-4")


class Interrupted:
    """A client before whose first write to the manifest something else happens."""

    def __init__(self, s3: Any, between: Callable[[], None]) -> None:
        self._s3, self._between = s3, between
        self.puts = itertools.count()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._s3, name)

    def put_object(self, **options: Any) -> Any:
        if options["Key"].endswith("/manifest") and next(self.puts) == 0:
            self._between()
        return self._s3.put_object(**options)


@pytest.mark.parametrize("begun", [False, True])
def test_an_object_that_was_replaced_since_it_was_looked_at_is_looked_at_again(
    s3_store: ObjectStore, *, begun: bool
) -> None:
    """Between look and put a newer holder writes: refused. An older one does: written over."""
    from examples.fenced_writes import object_store

    if begun:
        s3_store.write(1, "before")
    newer = Interrupted(s3_store.s3, lambda: s3_store.write(3, "newer"))
    with pytest.raises(StaleError):
        object_store.write(newer, "bucket", JOB, 2, b"late")
    assert s3_store.read() == (3, "newer")
    older = Interrupted(s3_store.s3, lambda: s3_store.write(3, "once more"))
    object_store.write(older, "bucket", JOB, 4, b"mine")
    assert s3_store.read() == (4, "mine")
    assert next(older.puts) >= 1
