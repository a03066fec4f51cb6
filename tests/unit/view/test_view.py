"""One row for each lease, from whoever knows it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from celery_lease.cli.explain import awaited_key
from celery_lease.cli.timeline import Timeline
from celery_lease.core.records import Recorded
from celery_lease.view import Collector, Sources, View
from celery_lease.view.collector import LISTED

W1, W2 = "w1@h:7:ab", "w2@h:8:cd"


def said(tag: str, **facts: Any) -> dict[str, Any]:
    """Return a lease as a worker describes it."""
    usual = {
        "task": "proj.work",
        "id": tag.upper(),
        "tag": tag,
        "state": "running",
        "worker": W1,
        "held_since": 1000.0,
        "started_at": 1001.0,
        "beat_age": 1.0,
        "remaining": 20.0,
        "progress": {"done": 3.0, "total": 8.0, "note": "encoding"},
        "deliveries": 1,
        "losses": 0,
        "max_deliveries": 3,
        "extension": 30.0,
        "token": 5,
    }
    return {**usual, **facts}


def recorded(tag: str, worker: str = W1, **facts: Any) -> Recorded:
    """Return a lease as the broker has it on record."""
    usual: dict[str, Any] = {
        "tag": tag,
        "task_id": tag.upper(),
        "task": "proj.work",
        "queue": "q",
        "worker": worker,
        "token": 5,
        "deliveries": 1,
        "losses": 0,
        "since": 1000.0,
        "remaining": 20.0,
    }
    return Recorded(**{**usual, **facts})


class Place:
    """A broker and its workers, and one who looks at both."""

    def __init__(self, *, records: bool = True, askable: bool = True) -> None:
        self.replies: dict[str, Any] = {}
        self.record: list[Recorded] = []
        self.known: dict[str, list[str]] = {}
        self.parked: list[Recorded] = []
        self.parked_in: dict[str, int] = {}
        self.asked_for: list[int] = []
        self.now = 100.0
        self.collector = Collector()
        self.sources = Sources(
            ask=(lambda *_: self.replies) if askable else None,
            records=SimpleNamespace(leases=lambda _: self.record) if records else None,
            reap_within=10.0,
            known=lambda: self.known,
            parked=lambda: self.parked_in,
            first_parked=self.first_parked,
        )

    def first_parked(self, most: int) -> list[Recorded]:
        self.asked_for.append(most)
        return self.parked

    def look(self, **options: Any) -> View:
        self.collector.collect(self.sources, lambda: self.now, timeout=1.0, **options)
        return self.collector.view(self.now)

    def states(self, **options: Any) -> dict[str, str]:
        return {row.tag: row.state for row in self.look(**options).rows}


def test_a_lease_of_a_dead_worker_is_orphaned_and_says_when_it_runs_again() -> None:
    """Beside those of a living one; it has what the dead one said last of its progress."""
    place = Place()
    place.replies = {"w1@h": [said("a")], "w2@h": [said("b", worker=W2)]}
    place.record = [recorded("a"), recorded("b", W2)]
    place.known = {"w1@h": [W1], "w2@h": [W2]}
    assert place.states() == {"a": "running", "b": "running"}
    del place.replies["w1@h"], place.known["w1@h"]
    place.now += 5.0
    place.record = [recorded("a", remaining=15.0), recorded("b", W2)]
    rows = {row.tag: row for row in place.look().rows}
    assert (rows["a"].state, rows["a"].runs_again_in) == ("orphaned", 25.0)
    assert (rows["a"].hostname, rows["a"].worker) == ("w1@h", W1)
    kept = (rows["a"].progress.note, rows["a"].max_deliveries, rows["a"].extension)
    assert kept == ("encoding", 3, 30.0)
    assert rows["b"].state == "running"
    place.now += 20.0
    (orphan,) = (row for row in place.collector.view(place.now).rows if row.tag == "a")
    assert (orphan.remaining, orphan.runs_again_in) == (-5.0, 5.0)
    place.record = [recorded("a", remaining=-5.0), recorded("b", W2)]
    for _ in range(2):  # no reaper has been here yet
        (orphan,) = (row for row in place.look().rows if row.tag == "a")
        assert (orphan.state, orphan.progress.note, orphan.progress.done) == (
            "orphaned",
            "encoding",
            3.0,
        )
        place.now += 60.0
    place.record = [recorded("b", W2)]
    place.look()
    assert list(place.collector.said) == ["w2@h"]


def test_a_lease_of_a_restarted_worker_is_orphaned_although_its_name_replies() -> None:
    """It is told from the new one by its identity."""
    place = Place()
    place.replies, place.known = {"w1@h": []}, {"w1@h": ["w1@h:9:ef"]}
    place.record = [recorded("a")]
    (row,) = place.look().rows
    assert (row.state, row.shown_as) == ("orphaned", W1)


def test_what_was_taken_since_the_reply_is_not_orphaned() -> None:
    """The record is read last; also where an older worker does not say who it is."""
    place = Place()
    place.replies, place.record = {"w1@h": []}, [recorded("a")]
    for known in ({"w1@h": [W1]}, {"w1@h": []}, {}):
        place.known = known
        assert place.states() == {"a": "held"}


def test_what_ended_since_its_worker_fell_silent_is_gone() -> None:
    """The record is right, whatever was said before; a resting message has no holder."""
    place = Place()
    place.replies, place.record = {"w1@h": [said("a")]}, [recorded("a")]
    place.look()
    place.replies, place.record = {}, [recorded("r", resting=True, remaining=4.0)]
    (row,) = place.look().rows
    assert (row.tag, row.state, row.runs_again_in) == ("r", "resting", 14.0)


def test_without_a_record_a_silent_worker_is_shown_by_what_it_said_last() -> None:
    """Marked so, until somebody else has the task or the lease must have expired."""
    place = Place(records=False)
    place.replies = {"w1@h": [said("a"), said("b", remaining=300.0)], "w2@h": []}
    place.look()
    place.replies = {"w2@h": [said("x", id="A", worker=W2)]}
    place.now += 20.0
    rows = {row.tag: row for row in place.look().rows}
    assert (rows["b"].state, rows["b"].heard_age, rows["b"].remaining) == ("silent", 20.0, 280.0)
    assert (rows["x"].state, "a" in rows) == ("running", False)
    place.now += 281.0
    assert place.states() == {"x": "running"}


def test_where_nobody_can_be_asked_the_record_is_all_there_is() -> None:
    """Who holds it is not known, and so nothing is called orphaned."""
    place = Place(askable=False)
    place.record = [recorded("a", "")]
    view = place.look()
    assert [row.state for row in view.rows] == ["held"]
    assert (view.workers, view.recorded) == ([], True)


def test_some_workers_and_some_tasks_can_be_asked_for() -> None:
    """The record is held to the same."""
    place = Place()
    place.record = [recorded("a"), recorded("b", W2)]
    assert place.states(names=["w2@h"]) == {"b": "orphaned"}
    assert place.states(task_ids=["A"]) == {"a": "orphaned"}


def test_workers_of_one_name_are_two() -> None:
    """Each row has its worker's identity, the headline says it, and neither is called silent."""
    place = Place()
    place.replies = {"w1@h": [said("a")]}
    place.look()
    twin = "w1@h:9:ef"
    place.known = {"w1@h": [W1, twin]}
    place.replies = {W1: [said("a")], twin: [said("b", worker=twin)]}
    view = place.look()
    assert {row.tag: (row.hostname, row.shown_as) for row in view.rows} == {
        "a": ("w1@h", W1),
        "b": ("w1@h", twin),
    }
    assert (view.duplicates, view.silent) == ({"w1@h": [W1, twin]}, [])
    assert view.headline() == "2 workers, 2 leases: 2 running; 2 workers are named w1@h"


def test_parked_messages_are_rows_beside_the_leases() -> None:
    """A bounded number of them; the others are counted."""
    place = Place()
    place.replies = {"w1@h": [said("a")]}
    assert place.look().all_rows == place.look().rows
    assert place.asked_for == []
    place.parked_in = {"q": 10_000, "r": 2}
    place.parked = [recorded("b~", "", key="k", position=1, remaining=0.0, since=900.0)]
    view = place.look()
    assert place.asked_for == [LISTED]
    (row,) = view.parked
    assert (row.state, row.id, row.key, row.position) == ("parked", "B~", "k", 1)
    assert (row.held_since, row.remaining, row.hostname, row.worker) == (900.0, 0.0, "", "")
    assert [each.tag for each in view.all_rows] == ["a", "b~"]
    assert (view.parked_count, view.more_parked) == (10_002, 10_001)
    assert view.headline() == "1 worker, 1 lease: 1 running; 10002 messages parked"


def test_parked_messages_are_of_no_worker() -> None:
    """They are only counted for some workers, and not looked for where tasks are named."""
    place = Place()
    place.parked_in, place.parked = {"q": 1}, [recorded("b~", "", key="k", position=1)]
    view = place.look(names=["w1@h"])
    assert (view.parked, view.parked_in, view.more_parked) == ([], {"q": 1}, 0)
    view = place.look(task_ids=["A"])
    assert (view.parked, view.parked_in, place.asked_for) == ([], {}, [])


def test_the_key_of_a_task_is_known_from_a_look_or_has_to_be_searched_for() -> None:
    """What is not listed may be parked; a held task is not if all that are parked are listed."""
    place = Place()
    place.replies = {"w1@h": [said("a")]}
    assert awaited_key(place.look(), "A") == ""
    assert awaited_key(place.look(), "X") is None
    place.parked_in = {"q": 2}
    place.parked = [recorded(each, "", key="k", position=1) for each in ("b~", "a~")]
    place.parked[1] = replace(place.parked[1], task_id="C")
    assert awaited_key(place.look(), "B~") == "k"
    assert awaited_key(place.look(), "A") == ""
    place.parked_in = {"q": 3}
    assert awaited_key(place.look(), "A") is None
    assert awaited_key(place.look(), "C") == "k"


@pytest.mark.parametrize("state", ["running", "storing result"])
def test_a_workers_own_words_are_shown_as_they_are(state: str) -> None:
    """Also those of a newer version, with facts that this one does not know."""
    place = Place()
    place.replies = {"w1@h": [said("a", state=state, colour="blue", progress=None)]}
    assert place.states() == {"a": state}


def test_a_recording_begins_with_what_is_held() -> None:
    """A task that runs now and says nothing meanwhile has a bar to the end of the recording."""
    place = Place()
    place.replies = {"w1@h": [said("a"), said("b", state="reserved", started_at=None)]}
    timeline = Timeline()
    for row in place.look().rows:
        timeline.begin_with(row, 2000.0)
    timeline.until = 2030.0
    assert timeline.span() == (2000.0, 2030.0)
    assert [bar.started for bar in timeline.bars.values()] == [2000.0, None]
    event = {"uuid": "A", "name": "proj.work", "lease": "a", "token": 5, "timestamp": 2010.0}
    timeline.add({**event, "type": "lease-ended", "ending": "completed"})
    assert (timeline.bars["a"].end, timeline.bars["a"].ended) == ("completed", 2010.0)
