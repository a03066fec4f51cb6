"""Leases as rows of text, and a collector whose workers come and go."""

from __future__ import annotations

from typing import Any

import click
import pytest
from kombu import Connection

from celery_lease.cli import rows
from celery_lease.cli.broker import BrokerAway
from celery_lease.cli.ids import expanded
from celery_lease.view import Collector, LeaseRow
from celery_lease.view.collector import FORGET


def row(**facts: Any) -> LeaseRow:
    """Return a lease as it is shown."""
    return LeaseRow.from_reply(
        str(facts.get("hostname")), str(facts.get("hostname")), said(**facts)
    )


def said(**facts: Any) -> dict[str, Any]:
    """Return a lease as a worker describes it."""
    return {
        "task": "proj.work",
        "id": "1",
        "state": "running",
        "held_since": 1000.0,
        "beat_age": 1.0,
        "remaining": 20.0,
        "progress": {"done": 3.0, "total": 8.0, "note": "encoding"},
        "deliveries": 2,
        "losses": 1,
        **facts,
    }


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (-1.0, "0.0s"),
        (3.21, "3.2s"),
        (59.9, "59s"),
        (250.0, "4m10s"),
        (7380.0, "2h03m"),
        (443000.0, "5d03h"),
    ],
)
def test_durations_are_short_and_have_their_unit(seconds: float | None, text: str) -> None:
    """At most six characters each."""
    assert rows.span(seconds) == text


@pytest.mark.parametrize(
    ("progress", "text"),
    [
        ({"done": 3.0, "total": 8.0}, "3/8 (38%)"),
        ({"done": 3.0, "total": None}, "3"),
        ({"done": 3.0, "total": 0.0}, "3"),
        ({"done": 9.0, "total": 8.0}, "9/8 (100%)"),
        ({"done": None, "total": 8.0}, "-"),
        ({}, "-"),
    ],
)
def test_progress_is_shown_as_far_as_it_was_told(progress: dict[str, Any], text: str) -> None:
    """Also where a task's numbers make no sense."""
    assert rows.amount(row(progress=progress)) == text


def test_what_a_task_says_cannot_act_on_the_terminal() -> None:
    """Control characters in a note are blanks; columns stay in line."""
    noted = row(hostname="w1@h", progress={"note": "a\x1b[31m\nb"})
    lines = list(rows.text([rows.cells(noted, 1010.0)]))
    assert len(lines) == 2
    assert "\x1b" not in lines[1]
    assert lines[1].split()[:6] == ["proj.work", "1", "w1@h", "running", "10s", "1.0s"]
    assert lines[1].endswith("2, 1 lost")


@pytest.mark.parametrize(
    ("most", "missing"),
    [
        (200, set()),
        (120, {"NOTE"}),
        (110, {"NOTE", "DELIVERY"}),
        (80, {"NOTE", "DELIVERY", "HELD", "WORKER", "STATE"}),
        (10, set(rows.LEAST)),
    ],
)
def test_a_narrow_screen_goes_without_what_matters_least(most: int, missing: set[str]) -> None:
    """Task, id and the times of its lease are always there; what is shown is shown whole."""
    facts = row(
        hostname="worker1@host", id="8d2c4f60-7c41-4b0e-9a52-9f5d1c1e1d11", task="project.transcode"
    )
    table = [rows.cells(facts, 1010.0)]
    wide = rows.widths(table)
    names = rows.fitting(wide, most)
    assert set(rows.HEADERS) - set(names) == missing
    assert most < 80 or rows.total(wide, names) <= most


def test_rows_are_sorted_by_any_column() -> None:
    """The longest held, the most silent, the least left first; a reserved one is not silent."""
    found = [
        row(id="a", hostname="w", held_since=5.0, beat_age=1.0, remaining=9.0),
        row(id="b", hostname="w", held_since=4.0, beat_age=None, remaining=1.0, progress={}),
        row(id="c", hostname="v", held_since=6.0, beat_age=3.0, remaining=5.0, deliveries=9),
    ]
    orders = {
        name: "".join(each.id for each in sorted(found, key=key))
        for name, key in rows.SORTS.items()
    }
    assert orders == {
        "worker": "cba",
        "task": "bac",
        "held": "bac",
        "beat": "cab",
        "left": "bca",
        "progress": "acb",
        "deliveries": "cab",
    }


def test_what_is_parked_comes_last_and_has_no_lease() -> None:
    """In each sort order, and by the same among itself."""
    facts = {"state": "parked", "hostname": "", "beat_age": None, "remaining": 0.0, "progress": {}}
    waiting = [
        row(
            **facts,
            id=name,
            key="k",
            position=place,
            held_since=2.0 - place,
            deliveries=0,
            losses=0,
        )
        for name, place in (("x", 1), ("y", 2))
    ]
    leases = [row(id="a", hostname="w", held_since=5.0), row(id="b", hostname="v", held_since=4.0)]
    for sort in rows.SORTS:
        order = [each.id for each in rows.in_order([*waiting, *leases], sort)]
        assert sorted(order[:2]) == ["a", "b"]
    assert [each.id for each in rows.in_order([*waiting, *leases], "held")] == ["b", "a", "y", "x"]
    cells = rows.cells(waiting[0], 11.0)
    assert cells[3:] == ("parked", "10s", "-", "-", "-", "position 1 for key k", "-")


def test_times_go_on_between_two_replies() -> None:
    """A lease that was described three seconds ago has three seconds less."""
    fleet = Collector()
    fleet.heard({"w1@h": [said(), said(id="2", beat_age=None, remaining=1.0)]}, at=100.0)
    aged = {each.id: each for each in fleet.view(103.0).rows}
    assert (aged["1"].beat_age, aged["1"].remaining) == (4.0, 17.0)
    assert (aged["2"].beat_age, aged["2"].remaining) == (None, 0.0)
    assert fleet.view(103.0).headline() == "1 worker, 2 leases: 2 running"


def test_a_silent_worker_is_shown_as_such_and_forgotten_later() -> None:
    """It may be busy, or gone; one that has no leases to tell of is not counted."""
    fleet = Collector()
    fleet.heard({"w1@h": [said()], "w2@h": [], "plain@h": {"error": "x"}}, at=100.0)
    fleet.heard({"w2@h": []}, at=102.0)
    assert fleet.view(102.0).silent == ["w1@h"]
    assert fleet.view(102.0).headline().endswith("; no reply from w1@h")
    fleet.heard({"w2@h": []}, at=100.0 + FORGET)
    assert fleet.view(120.0).rows == fleet.view(120.0).silent == []


def test_a_broker_that_is_away_is_told_until_it_is_back() -> None:
    """What was known before stays."""
    fleet = Collector()
    fleet.heard({"w1@h": [said()]}, at=100.0)
    fleet.failed("broker away")
    assert fleet.trouble == "broker away"
    assert [each.id for each in fleet.view(101.0).rows] == ["1"]
    fleet.heard({"w1@h": []}, at=102.0)
    assert fleet.view(102.0).headline() == "1 worker, 0 leases"
    assert not fleet.trouble


def test_ids_are_cut_to_what_tells_them_apart_where_they_do_not_fit() -> None:
    """Of all leases, also of those that are not shown; a file has them whole."""
    one, two = "8d2c4f60-7c41-4b0e-9a52-9f5d1c1e1d11", "8d2c4f60-7d41-4b0e-9a52-9f5d1c1e1d11"
    table = [rows.cells(row(hostname="w@h", id=each), 1010.0) for each in (one, two)]
    assert rows.shortened(table, 300) is table
    assert [each[1] for each in rows.shortened(table, 80)] == ["8d2c4f60-7c", "8d2c4f60-7d"]
    assert [each[1] for each in rows.shortened(table[:1], 80)] == ["8d2c4f60"]
    assert [each[1] for each in rows.shortened(table[:1], 80, [two])] == ["8d2c4f60-7c"]
    lines = list(rows.text(rows.shortened(table, 80), 80))
    assert max(map(len, lines)) <= 80
    assert "STATE" in lines[0]
    assert one in list(rows.text(table))[1]


def test_columns_that_are_drawn_again_do_not_jump() -> None:
    """They only grow: what was as wide before stays where it is."""
    wide = [rows.cells(row(hostname="w@h", state="lost", lost="expired", remaining=900.0), 1010.0)]
    narrow = [rows.cells(row(hostname="w@h", progress={}), 1010.0)]
    steady = rows.widths(wide, rows.USUAL)
    before = next(rows.text(wide, 200, steady))
    after = next(rows.text(narrow, 200, rows.widths(narrow, steady)))
    assert [before.index(name) for name in rows.HEADERS] == [
        after.index(name) for name in rows.HEADERS
    ]


def test_a_beginning_of_an_id_is_enough_if_it_is_unique() -> None:
    """A whole id wins over those that it begins; several are named."""
    one, two = (f"{each}-7c41-4b0e-9a52-9f5d1c1e1d11" for each in ("8d2c4f60", "8d2d4f60"))
    ids = [one, two, "8d2", "report-10"]
    assert expanded("8d2c", ids) == expanded(one, ids) == one
    assert expanded("8d2", ids) == "8d2"
    assert expanded("x", ids) == "x"
    with pytest.raises(click.UsageError, match=f"2 task ids begin with 8d2: {one}, {two}"):
        expanded("8d2", ids[:2])


def test_an_app_s_own_short_ids_are_shown_and_given_whole() -> None:
    """One may be the beginning of another; and nothing is the beginning of all."""
    assert expanded("report-1", ["report-10"]) == "report-1"
    assert expanded("8d2c4f60" * 5, ["8d2c4f60" * 6]) == "8d2c4f60" * 5
    with pytest.raises(click.UsageError, match="a task id is empty"):
        expanded("", ["report-10"])
    ids = ["report-10", "8d2c4f60-7c41-4b0e-9a52-9f5d1c1e1d11"]
    table = [rows.cells(row(hostname="w@h", id=each), 1010.0) for each in ids]
    assert [each[1] for each in rows.shortened(table, 80)] == ["report-10", "8d2c4f60"]


@pytest.mark.parametrize(("named", "said"), [(None, True), ("proj", False)])
def test_who_names_no_app_is_told_so_beside_a_failure(named: str | None, said: bool) -> None:
    """Celery's default broker is not theirs; and no text has a password."""
    command = click.Command("celery", params=[click.Option(["--app"])])
    connection = Connection("redis://user:secret@127.0.0.1:1//")
    with click.Context(command) as ctx:
        ctx.params["app"] = named
        text = BrokerAway(connection, "no route to user:secret@127.0.0.1.").message
    assert ("No app was named: celery -A APP" in text) is said
    assert "secret" not in text
