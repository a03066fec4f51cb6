"""The examples of the page on resuming loops: their runs are killed, and no item is missing."""

from __future__ import annotations

import re
import sys
from datetime import datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from celery_lease import ShutdownRequested
from celery_lease.task.checkpoints.memory import MemoryStore
from unit.project.test_docs import blocks

if TYPE_CHECKING:
    from celery_lease.testing import RecordedContext
    from celery_lease.testing.clock import LeaseClock
    from celery_lease.testing.plugin import MakeContext

PAGE = Path(__file__).parents[3] / "docs" / "resume-a-loop.md"


class Killed(BaseException):
    """The process is gone."""


class Runs:
    """Runs of an example: the first is killed in its 8th item, the second is asked to stop."""

    context: RecordedContext

    def __init__(self, make_lease_context: MakeContext, lease_clock: LeaseClock) -> None:
        self._make, self._clock = make_lease_context, lease_clock
        self._ends = {7: "killed", 14: "stopped"}
        self.items: list[Any] = []

    def work(self, *args: Any, **_: Any) -> None:
        """Do an item, in a second."""
        end = self._ends.pop(len(self.items), "")
        if end == "killed":
            self.context._checkpoints._store = MemoryStore()  # nothing reaches the other one
            raise Killed
        self.items.append(args if len(args) > 1 else args[0])
        self._clock.advance(1)
        if end == "stopped":
            self.context.shut_down()

    def play(self, name: str, *args: Any, **names: Any) -> list[Any]:
        """Run the task of that name three times; return the items, in order."""
        block, *_ = (each for each in blocks(PAGE.read_text()) if f"def {name}(" in each)
        # Without the decorator, which would share it with all apps of this process.
        exec(re.sub(r"@leased_task\(.*\)", "", block), names)  # noqa: S102  (our own page)
        self.context = self._make(lease_interruptible=True)
        with pytest.raises(Killed):
            names[name](*args, context=self.context)
        self.context = self._make(lease_interruptible=True, after=self.context)
        with pytest.raises(ShutdownRequested):
            names[name](*args, context=self.context)
        self.context = self._make(after=self.context)
        names[name](*args, context=self.context)
        return self.items


@pytest.fixture
def runs(make_lease_context: MakeContext, lease_clock: LeaseClock) -> Runs:
    """Runs of one test."""
    return Runs(make_lease_context, lease_clock)


def module(monkeypatch: pytest.MonkeyPatch, name: str, **names: Any) -> None:
    """Let an example import a module of its project."""
    package, _, _ = name.partition(".")
    made = ModuleType(name)
    vars(made).update(names)
    monkeypatch.setitem(sys.modules, package, ModuleType(package))
    monkeypatch.setitem(sys.modules, name, made)


def resumed(items: list[Any]) -> list[Any]:
    """Return what was done but for repetitions, of which there are those that the page tells.

    Saved was the place after 5 seconds, a second for each item; the stop repeats nothing.
    """
    assert items[5:7] == items[7:9]
    return items[:7] + items[9:]


def test_files_of_a_folder(runs: Runs) -> None:
    """By position."""
    files = [f"{number:02}" for number in range(20)]
    found = runs.play("index", "x", list_files=lambda _: files[::-1], add_to_index=runs.work)
    assert resumed(found) == files


def test_rows_of_django(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """By primary key, in a database."""
    django = pytest.importorskip("django")
    from django.conf import settings
    from django.db import connection, models

    if not settings.configured:
        memory = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
        settings.configure(DATABASES={"default": memory})
        django.setup()

    class Article(models.Model):  # noqa: DJ008  (nobody prints it)
        class Meta:
            app_label = "blog"

    with connection.schema_editor() as editor:
        editor.create_model(Article)
    Article.objects.bulk_create(Article(pk=number) for number in range(1, 40, 2))
    module(monkeypatch, "blog.models", Article=Article)
    found = runs.play("reindex", add_to_index=lambda each: runs.work(each.pk))
    connection.close()
    assert resumed(found) == [*range(1, 40, 2)]
    assert (runs.context.progress.total, runs.context.progress.done) == (20, 20)


def test_rows_of_sqlalchemy(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a tuple with a datetime, which several rows may share."""
    sqlalchemy = pytest.importorskip("sqlalchemy")
    from sqlalchemy import orm

    class Base(orm.DeclarativeBase):
        pass

    class Order(Base):
        __tablename__ = "orders"
        id = orm.mapped_column(sqlalchemy.Integer, primary_key=True)
        placed = orm.mapped_column(sqlalchemy.DateTime)

    engine = sqlalchemy.create_engine("sqlite://", poolclass=sqlalchemy.StaticPool)
    Base.metadata.create_all(engine)
    begin = datetime(2026, 1, 1)  # noqa: DTZ001  (as SQLite has it)
    with orm.Session(engine) as session:
        for number in range(20):
            session.add(Order(id=number, placed=begin - timedelta(days=number // 3)))
        session.commit()
    module(monkeypatch, "shop.models", Order=Order, Session=lambda: orm.Session(engine))
    found = runs.play("bill", send_bill=lambda each: runs.work((each.placed, each.id)))
    engine.dispose()
    assert resumed(found) == sorted((begin - timedelta(days=n // 3), n) for n in range(20))


def test_objects_of_s3(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    """By key, over several pages."""
    boto3, moto = pytest.importorskip("boto3"), pytest.importorskip("moto")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", "6")
    keys = [f"photo {number:02}" for number in range(20)]
    with moto.mock_aws():
        client = boto3.client("s3")
        client.create_bucket(Bucket="photos")
        for key in keys:
            client.put_object(Bucket="photos", Key=key)
        found = runs.play("scan", "photos", check=runs.work)
    assert resumed(found) == [("photos", key) for key in keys]


def test_lines_of_a_file(runs: Runs, tmp_path: Path) -> None:
    """By offset."""
    lines = [f"größe {number}\n" for number in range(20)]
    path = tmp_path / "log"
    path.write_text("".join(lines), encoding="utf-8")
    assert resumed(runs.play("load_log", str(path), load=runs.work)) == lines


def test_records_of_a_csv_file(runs: Runs, tmp_path: Path) -> None:
    """Also of several lines."""
    records = [{"id": str(number), "text": f"größe\r\n{number}"} for number in range(20)]
    text = "".join(f'{each["id"]},"{each["text"]}"\r\n' for each in records)
    path = tmp_path / "records.csv"
    path.write_text("id,text\r\n" + text, encoding="utf-8", newline="")
    assert resumed(runs.play("load_csv", str(path), load=runs.work)) == records


def test_a_loop_in_a_loop_and_one_after_it(runs: Runs) -> None:
    """Each order comes, and each shop's report."""
    shops = ["a", "b", "c"]
    found = runs.play(
        "rebuild",
        shops,
        orders_of=lambda _: range(6),
        rebuild_order=runs.work,
        send_report=runs.work,
    )
    orders: list[Any] = [(shop, order) for shop in shops for order in range(6)]
    assert resumed(found) == [*orders, *shops]


def test_a_checkpoint_alone(runs: Runs) -> None:
    """Saved for each epoch, so none comes again."""
    assert runs.play("train", 20, train_epoch=runs.work) == [*range(20)]
