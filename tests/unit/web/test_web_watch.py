"""One watch behind all viewers: how often it looks, and what it keeps."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click
import pytest
from celery import Celery
from click.testing import CliRunner

from celery_lease.cli import lease as command
from celery_lease.cli.watch import SHARE
from celery_lease.view import Progress, Sources, View
from celery_lease.web import history as kept, watch as watching
from celery_lease.web.history import History
from celery_lease.web.pages import Pages
from celery_lease.web.picture import LANES, document, picture, task_picture
from celery_lease.web.rates import Rates, seconds_left
from celery_lease.web.serve import is_loopback
from celery_lease.web.site import Site
from celery_lease.web.watch import MOST_ANSWERS, PageWatch, Shared
from unit.fakes import FakeClock
from unit.web_pages import Still, lease

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from celery_lease.view import LeaseRow

NOW = 1_700_000_000.0


def a_watch(**facts: Any) -> PageWatch:
    return PageWatch(Celery("video", broker="memory://", set_as_current=False), **facts)


class Beside:
    """A broker that counts how often it is asked."""

    def __init__(self, trouble: click.ClickException | None = None) -> None:
        self.asked, self.trouble = 0, trouble

    def leases(self, _task_id: str | None = None) -> Iterator[Any]:
        self.asked += 1
        if self.trouble is not None:
            raise self.trouble
        return iter(())


def sources_of(broker: Any) -> Callable[[Celery], AbstractContextManager[Sources]]:
    from contextlib import contextmanager

    @contextmanager
    def opened(_: Celery) -> Iterator[Sources]:
        yield Sources(ask=None, records=broker)

    return opened


def test_many_viewers_ask_the_broker_no_more_than_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first starts the watch; what it found serves all others."""
    broker = Beside()
    monkeypatch.setattr("celery_lease.cli.watch.sources", sources_of(broker))
    watch = a_watch(interval=60.0)
    try:
        assert watch.current().number == 1
        seen = []
        viewers = [
            threading.Thread(target=lambda: seen.append(watch.current().number)) for _ in range(20)
        ]
        for viewer in viewers:
            viewer.start()
        for viewer in viewers:
            viewer.join(10)
        assert seen == [1] * 20
        assert broker.asked == 1
    finally:
        watch.close()


def test_it_rests_longer_where_there_is_more_to_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that reading takes no more than its share of a processor."""
    monkeypatch.setattr("celery_lease.cli.watch.sources", sources_of(Beside()))
    spent = iter([0.0, 0.01, 1.0, 1.4])
    monkeypatch.setattr("celery_lease.cli.watch.thread_seconds", lambda: next(spent))
    rests: list[float] = []

    class Resting(PageWatch):
        def rest(self, seconds: float) -> None:
            rests.append(seconds)
            if len(rests) == 2:
                self.over.set()

    watch = Resting(Celery("video", broker="memory://", set_as_current=False))
    watch.viewed_at = watch.clock.now()
    watch.run()
    assert rests[0] <= 1.0
    assert rests[1] == pytest.approx(0.4 / SHARE)


def test_nobody_looks_for_an_hour_and_it_stops() -> None:
    """Until somebody does."""
    clock = FakeClock()
    watch = a_watch(clock=clock)
    watch.viewed_at = clock.now()
    assert watch.is_wanted()
    clock.advance(watching.STOP_AFTER + 1)
    assert not watch.is_wanted()


def test_what_was_seen_last_stays_while_the_broker_is_away() -> None:
    """With the reason; and the next look that succeeds has none."""
    watch = a_watch()
    row = lease()
    watch.latest = replace(watch.latest, number=1, view=View(rows=[row]), at=1.0)
    watch.failed("refused")
    assert (watch.latest.number, watch.latest.trouble) == (2, "refused")
    assert list(watch.latest.view.rows) == [row]
    watch.ask(Sources(ask=None, records=Beside()))  # type: ignore[arg-type]
    assert (watch.latest.number, watch.latest.trouble) == (3, "")


@pytest.mark.parametrize("asked", [0, 1])
def test_viewers_learn_of_a_broker_that_leaves_the_watch_waiting(asked: int) -> None:
    """Also the first of them; until the watch goes on."""
    clock = FakeClock()
    watch = a_watch(clock=clock)
    watch.latest = replace(watch.latest, number=asked)
    watch.viewed_at = watch.asks_since = clock.now()
    clock.advance(7)
    assert watch.seen().trouble == ""
    clock.advance(0.1)
    assert "does not answer: not within 7 s" in watch.seen().trouble
    assert watch.seen().number == asked
    watch.over.set()
    watch._pause(0)
    assert watch.seen().trouble == ""


def test_a_page_hears_of_trouble_and_of_its_end_without_a_new_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its stream tells it to ask again."""
    watch, troubles = Still(), ["away", ""]
    pages: Any = Pages(Site(watch.app, watch))
    monkeypatch.setattr(watch, "trouble", lambda: troubles[0])

    async def hear() -> None:
        stream = (await pages.news(None)).body_iterator
        async with asyncio.timeout(5):
            assert await anext(stream) == {"event": "look", "data": "1"}
            troubles.pop(0)
            assert await anext(stream) == {"event": "look", "data": "1"}

    asyncio.run(hear())


def test_an_answer_serves_all_who_ask_within_some_seconds() -> None:
    """A failure as well; what was changed is asked again."""
    clock, asked = FakeClock(), []
    shared = Shared(clock)

    def ask() -> int:
        asked.append(1)
        if len(asked) == 3:
            raise click.ClickException("away")
        return len(asked)

    assert [shared.get("a", 2.0, ask) for _ in range(5)] == [1] * 5
    clock.advance(3)
    assert shared.get("a", 2.0, ask) == 2
    shared.forget()
    for _ in range(4):
        with pytest.raises(click.ClickException, match="away"):
            shared.get("a", 2.0, ask)
    clock.advance(3)
    assert shared.get("a", 2.0, ask) == 4


def test_answers_are_kept_within_bounds() -> None:
    """A reader who makes up ids fills no memory."""
    shared = Shared(FakeClock())
    for number in range(3 * MOST_ANSWERS):
        shared.get(number, 60.0, lambda: number)  # noqa: B023
    assert len(shared._answers) == MOST_ANSWERS


def row(done: float, **facts: Any) -> LeaseRow:
    return lease(progress=Progress(done=done, total=100), **facts)


def test_a_rate_is_of_the_last_minute() -> None:
    """A task that resumed at 50 of 100 did not do those in a second."""
    rates = Rates()
    assert rates.take([row(50)], 0.0) == {}
    assert rates.take([row(51)], 1.0) == {}
    assert rates.take([row(60)], 10.0)["tag-0"] == 1.0
    for second in range(11, 100):
        found = rates.take([row(60)], float(second))
    assert found["tag-0"] == 0.0
    assert rates.take([], 101.0) == {}
    assert seconds_left(row(60), 4.0) == 10.0
    assert seconds_left(row(60), 0.0) is None
    assert seconds_left(row(100), 4.0) is None


def test_a_loop_has_its_own_rate() -> None:
    """It counts over all runs, and is known at the first look."""
    loop = lease(progress=Progress(done=50, total=100, rate=0.25))
    assert Rates().take([loop], 0.0) == {"tag-0": 0.25}


def look(history: History, at: float, *rows: LeaseRow, workers: tuple[str, ...] = ()) -> None:
    history.take(View(rows=rows), workers, NOW + at)


def test_a_timeline_has_extensions_losses_and_workers_that_come_and_go() -> None:
    """By looks alone: no worker sends an event for it."""
    history = History()
    row = lease(held_since=NOW - 5, started_at=NOW - 4, remaining=50.0)
    look(history, 0, row, workers=("w1@here:7:ab",))
    look(history, 10, replace(row, remaining=58.0), workers=("w1@here:7:ab",))
    look(history, 20, replace(row, state="orphaned", remaining=48.0))
    again = lease(tag="tag-9", hostname="w2@here", held_since=NOW + 60, started_at=NOW + 60)
    look(history, 61, again, workers=("w2@here:8:cd",))
    look(history, 70)
    first, second = history.bars("id-00000")
    assert (first.worker, first.end, first.why, first.ended) == (
        "w1@here",
        "lost",
        "no reply",
        NOW + 61,
    )
    assert (second.worker, second.end, second.ended) == ("w2@here", kept.OVER, NOW + 70)
    assert history.extensions("tag-0") == (NOW + 10,)
    assert [(mark.worker, mark.came) for mark in history.marks] == [
        ("w1@here:7:ab", False),
        ("w2@here:8:cd", True),
        ("w2@here:8:cd", False),
    ]
    drawn = picture(history, NOW + 100, 300)
    assert [row.worker for row in drawn.rows] == ["w1@here", "w2@here"]
    (bar,) = drawn.rows[0].lanes[0]
    assert (bar.at, bar.runs_at, bar.to) == (65.0, 65.33, 87.0)
    assert bar.extensions == [70.0]
    assert bar.kind == "lost"
    assert "no reply" in bar.said
    assert len(task_picture(history, NOW + 100, "id-00000").rows) == 2
    assert len(document(history.bars(), history)["deliveries"]) == 2


def test_a_timeline_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """In bars, in extensions, in time; what is held is kept before what is over."""
    monkeypatch.setattr(kept, "MOST", 10)
    history = History()
    look(history, 0, *(lease(number) for number in range(8)))
    look(history, 1, *(lease(number) for number in range(4, 8)))
    look(history, 2, *(lease(number) for number in range(4, 14)))
    assert (len(history.timeline.bars), history.left_out) == (10, 0)
    assert {bar.task_id for bar in history.bars()} == {f"id-{n:05}" for n in range(4, 14)}
    look(history, 3, *(lease(number) for number in range(4, 34)))
    assert (len(history.timeline.bars), history.left_out) == (10, 20)
    look(history, 4)
    look(history, 4 + kept.KEPT + 1)
    assert (len(history.timeline.bars), history._extended, history._deadlines) == (0, {}, {})


def test_a_worker_has_so_many_lanes_and_counts_the_rest() -> None:
    """Reserved messages are counted only."""
    history = History()
    running = [lease(n, held_since=NOW, started_at=NOW) for n in range(LANES + 5)]
    waits = [lease(n, started_at=None, state="reserved") for n in range(100, 107)]
    look(history, 0, *running, *waits)
    (row,) = picture(history, NOW + 1, 300).rows
    assert (len(row.lanes), row.more, row.waiting) == (LANES, 5, 7)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--host", "203.0.113.9"], "others can reach the page"),
        (["--host", "203.0.113.9", "--auth", "x"], "not USER:HASH"),
        (["--allow-host", "ops.example"], "anybody could use it"),
        (["--auth-token", "short"], "16 at least"),
    ],
)
def test_the_command_does_not_let_anybody_in_by_mistake(arguments: list[str], said: str) -> None:
    """It ends before it listens."""
    from types import SimpleNamespace

    app = Celery("video", broker="memory://", set_as_current=False)
    done = CliRunner().invoke(command, ["web", *arguments], obj=SimpleNamespace(app=app))
    assert done.exit_code == 2
    assert said in " ".join(done.output.split())


@pytest.mark.parametrize(
    ("host", "is_one"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False)],  # noqa: S104
)
def test_a_loopback_address_is_known(host: str, is_one: bool) -> None:
    """Names other than its own are not."""
    assert is_loopback(host) is is_one
    assert not is_loopback("ops.example")
