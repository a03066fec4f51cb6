"""What a trace makes of lease events, and how it is drawn."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING, Any

import click
import pytest

from celery_lease.cli import drawing
from celery_lease.cli.timeline import Timeline
from celery_lease.cli.trace import _begun

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery_lease.cli.timeline import Bar


def event(kind: str, at: float, lease: str = "a#1", **fields: Any) -> dict[str, Any]:
    """Return an event as a receiver hands it on; holders are named after their leases."""
    node = f"w-{lease.partition('#')[2]}@host"
    return {
        "type": f"lease-{kind}",
        "uuid": lease.partition("#")[0],
        "name": "t",
        "lease": lease,
        "token": int(lease.partition("#")[2]),
        "holder": f"{node}:77:abcdef12",
        "hostname": node,
        "timestamp": at,
        **fields,
    }


def timeline(*events: dict[str, Any], task_id: str | None = None) -> Timeline:
    found = Timeline(task_id)
    for each in events:
        found.add(each)
    return found


def bars(*events: dict[str, Any]) -> list[Bar]:
    return [bar for task in timeline(*events).tasks() for bar in task]


#: Columns of a terminal that leave eleven to the bars: one for each of ten seconds, and the last.
WIDTH = 50 + len("w-1@host") + 11

GRANTED, STARTED = event("granted", 10), event("started", 11)


def test_a_lease_that_goes_well_is_one_bar_from_grant_to_end() -> None:
    """With the node's name, not the identity of its process."""
    (bar,) = bars(GRANTED, STARTED, event("ended", 15, ending="completed"))
    assert (bar.granted, bar.started, bar.ended, bar.end) == (10, 11, 15, "completed")
    assert (bar.worker, bar.token) == ("w-1@host", 1)


def test_a_lost_lease_ends_when_it_was_lost_not_when_its_task_did() -> None:
    """The task may run on for long; its worker tells of both."""
    (bar,) = bars(
        GRANTED,
        STARTED,
        event("lost", 20, reason="expired"),
        event("ended", 90, ending="lost"),
        event("recovered", 22, late=2.0, hostname="w2@host"),
    )
    assert (bar.ended, bar.end) == (20, "lost")
    assert bar.why == "expired, recovered by w2@host 2.0 s later"


def test_a_killed_worker_s_bar_ends_when_its_lease_expired() -> None:
    """Told by who recovered it, in whatever order the events come."""
    again = event("granted", 23, "a#2")
    for events in (
        (GRANTED, STARTED, event("recovered", 22, late=2.0), again),
        (GRANTED, STARTED, again, event("recovered", 22, late=2.0)),
    ):
        first, second = bars(*events)
        assert (first.end, first.ended) == ("lost", 20.0)
        assert second.end == "held"


def test_where_nobody_recovers_the_next_grant_tells_of_the_loss() -> None:
    """On a broker that returns expired messages by itself."""
    first, _ = bars(GRANTED, STARTED, event("granted", 40, "a#2"))
    assert (first.end, first.ended, first.why) == ("lost", 40, "run again by then")


def test_what_happened_before_the_recording_is_not_made_up() -> None:
    """A lease that is first heard of at its end was there from the beginning of the picture."""
    (bar,) = bars(event("ended", 15, ending="handed over"))
    assert (bar.granted, bar.started, bar.ended) == (None, None, 15)


def test_a_silent_task_s_bar_says_what_it_did() -> None:
    """The watchdog tells after the lease has ended."""
    stalled = event("stalled", 15.2, silent=3.04, doing="busy on CPU", ended=True)
    (bar,) = bars(GRANTED, STARTED, event("ended", 15, ending="stalled"), stalled)
    assert (bar.end, bar.why) == ("stalled", "silent for 3.04 s, busy on CPU")


def test_one_task_is_followed_to_its_end() -> None:
    """Others are passed over; one that is handed back will run again."""
    one = timeline(
        GRANTED,
        event("granted", 12, "b#1"),
        event("ended", 13, ending="handed back"),
        {"type": "worker-online", "hostname": "w", "timestamp": 1.0},
        task_id="a",
    )
    assert len(one.bars) == 1
    assert not one.is_over
    one.add(event("ended", 20, "a#2", ending="completed"))
    assert one.is_over


def test_tasks_and_holders_are_in_the_order_of_their_times() -> None:
    """Each task's bars stay together."""
    order = bars(event("granted", 12, "b#1"), GRANTED, event("granted", 20, "a#2"))
    assert [bar.lease for bar in order] == ["a#1", "a#2", "b#1"]


STORY = (
    GRANTED,
    event("started", 12),
    event("lost", 16, reason="expired"),
    event("granted", 17, "a#2"),
    event("started", 18, "a#2"),
    event("ended", 20, "a#2", ending="completed"),
)


def test_the_text_draws_what_waits_and_what_runs_to_scale() -> None:
    """One column for each part of the width, the same for all bars."""
    lines = list(drawing.text(timeline(*STORY), WIDTH, plain=True))
    assert lines[0].startswith("10.0 s, ")
    assert [click.unstyle(line) for line in lines[1:]] == [
        "t[a]",
        "  w-1@host ..####      lost, token 1: expired",
        "  w-2@host        .##  completed, token 2",
    ]


def test_many_bars_are_counted_and_not_drawn() -> None:
    """A busy cluster's picture has an end."""
    many = timeline(*(event("granted", float(n), f"{n}#1") for n in range(250)))
    lines = list(drawing.text(many, 100))
    assert lines[-1] == "and 50 more"
    assert len(lines) == 2 + 2 * drawing.MOST_BARS
    assert "and 50 more" in drawing.svg(many)


@pytest.mark.parametrize("events", [STORY, (GRANTED,), (event("ended", 5, ending="lost"),)])
def test_the_picture_is_well_formed_and_stays_inside(events: tuple[dict[str, Any], ...]) -> None:
    """Also of a single moment."""
    root = ET.fromstring(drawing.svg(timeline(*events)))  # noqa: S314  (our own)
    width = float(root.get("viewBox", "").split()[2])
    for rect in root.iter("{http://www.w3.org/2000/svg}rect"):
        assert 0 <= float(rect.get("x", 0)) + float(rect.get("width", 0)) <= width


def test_names_cannot_break_out_of_the_picture() -> None:
    """They come from whoever sends tasks."""
    evil = event("granted", 1, "<script>#1", name='"><b>')
    picture = drawing.svg(timeline(evil, event("ended", 2, "<script>#1", ending="completed")))
    assert "<script>" not in picture
    ET.fromstring(picture)  # noqa: S314  (our own)


class Cluster:
    """Workers that answer to requests for events; those named had been asked before."""

    def __init__(self, *names: str, asked: tuple[str, ...] = ()) -> None:
        self.names, self.asked = names, asked
        self.calls: list[tuple[str, tuple[str, ...]]] = []

    def __call__(
        self, command: str, names: Sequence[str], _timeout: float, _arguments: dict[str, Any]
    ) -> dict[str, Any]:
        self.calls.append((command, tuple(names)))
        answers = {True: "task events already enabled", False: "task events enabled"}
        return {name: {"ok": answers[name in self.asked]} for name in names or self.names}


def test_workers_that_sent_no_events_before_send_none_afterwards() -> None:
    """Also those that came up meanwhile; each of them is asked once."""
    cluster = Cluster("w1", "w2", asked=("w2",))
    workers = _begun(cluster)
    workers.add({"w1", "w3"})
    workers.add({"w1", "w3"})
    workers.restore()
    assert cluster.calls == [
        ("enable_events", ()),
        ("enable_events", ("w3",)),
        ("disable_events", ("w1", "w3")),
    ]


def test_where_all_send_events_nothing_is_switched_off() -> None:
    """A monitor may depend on them."""
    cluster = Cluster("w1", asked=("w1",))
    _begun(cluster).restore()
    assert [command for command, _ in cluster.calls] == ["enable_events"]


def test_without_a_worker_there_is_nothing_to_record(capsys: pytest.CaptureFixture[str]) -> None:
    """It is said at once, not when the time is over."""
    with pytest.raises(SystemExit) as caught:
        _begun(Cluster())
    assert caught.value.code == 69
    assert "no worker with leases replied within 1 s" in capsys.readouterr().err


def test_nothing_in_the_picture_is_clipped() -> None:
    """However long a worker's name is, and what became of its lease."""
    node = "celery@transcoder-video-7d9f8b6c5-x2x4z.media.svc"
    events = [
        event("granted", 1, hostname=node, holder=f"{node}:77:abcdef12"),
        event("lost", 9, reason=f"recovered by {node} 0.4 s later, " + "and more " * 30),
    ]
    root = ET.fromstring(drawing.svg(timeline(*events)))  # noqa: S314  (our own)
    width = float(root.attrib["viewBox"].split()[2])
    texts = [
        (float(each.attrib["x"]), str(each.text))
        for each in root.iter("{http://www.w3.org/2000/svg}text")
        if each.attrib["class"] == "soft" and "text-anchor" not in each.attrib
    ]
    assert node in [text for _, text in texts]
    assert any(text.endswith("…") for _, text in texts)
    assert max(x + drawing.LETTER * len(text) for x, text in texts) <= width
    bars = [
        float(each.attrib["x"])
        for each in root.iter("{http://www.w3.org/2000/svg}rect")
        if each.attrib.get("class") in {"waits", "runs"}
    ]
    assert min(bars) > 32 + drawing.LETTER * len(node)
