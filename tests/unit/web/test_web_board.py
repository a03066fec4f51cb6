"""The page's board: which leases it shows, in whose words, and what stays in its links."""

from __future__ import annotations

import html
import json
import re
import time
from dataclasses import replace
from urllib.parse import parse_qs, urlsplit

import pytest
from starlette.testclient import TestClient

from celery_lease.cli import rows
from celery_lease.cli.status import document
from celery_lease.view import Progress
from celery_lease.web.board import PAGE
from unit.web_pages import HOST, Still, cells, client, lease, page, parked, text_of

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>\u202e\x1b[31m"


def test_the_board_has_the_columns_of_top_in_its_words() -> None:
    """A reader of one knows the other."""
    shown = page(Still([lease(), lease(1, state="reserved", started_at=None, beat_age=None)]))
    heads = re.findall(r"<th .*?</th>", shown, re.DOTALL)
    assert [text_of(head).upper() for head in heads] == list(rows.HEADERS)
    first, second = cells(shown)
    assert first[0] == "video.transcode"
    assert first[1].startswith("id-00000")
    assert first[2:4] == ["w1@here", "running"]
    assert first[7:] == ["2/8 (25%)", "working", "1"]
    assert second[3] == "reserved"


def test_parked_messages_are_rows_behind_the_leases() -> None:
    """With the key and the position; they have no holder, no beat and no lease."""
    watch = Still([lease(7)], parked=[parked(), parked(1)], parked_in={"celery": 2})
    shown = page(watch)
    first, *others = cells(shown)
    assert first[3] == "running"
    assert [each[1].split()[0] for each in others] == ["parked-0", "parked-0"]
    assert others[0][2:4] == ["-", "parked"]
    assert others[0][5:] == ["-", "-", "-", "position 1 for key import:7", "-"]
    assert "1 worker, 1 lease: 1 running; 2 messages parked" in text_of(shown)
    assert "more parked" not in shown
    assert "parked (2)" in shown


@pytest.mark.parametrize("query", ["state=parked", "q=IMPORT:7", "state=parked&queue=celery"])
def test_a_query_chooses_parked_messages(query: str) -> None:
    """By their state, their key or what leases are chosen by; 50 at a time, the rest is counted."""
    waiting = [parked(number) for number in range(2 * PAGE)]
    watch = Still([lease()], parked=waiting, parked_in={"celery": 9_000, "slow": 1_000})
    shown = page(watch, f"/?{query}&page=2")
    assert [row[8] for row in cells(shown)] == [
        f"position {number + 1} for key import:7" for number in range(PAGE, 2 * PAGE)
    ]
    assert "Page 2 of 2" in shown
    assert "and 9900 more parked messages" in shown
    said = client(watch).get(f"/board.json?{query}").json()
    assert said["leases"] == []
    assert [row["position"] for row in said["parked_messages"]] == list(range(1, 2 * PAGE + 1))
    assert (said["parked"], said["more_parked"]) == ({"celery": 9_000, "slow": 1_000}, 9_900)


def test_an_orphaned_lease_says_when_it_runs_again() -> None:
    """And what its task said last."""
    row = lease(state="orphaned", beat_age=None, runs_again_in=41.0, hostname="w2@here")
    (shown,) = cells(page(Still([row])))
    assert shown[3] == "orphaned"
    assert shown[8] == "runs again in about 41s ; said: working"


def test_nothing_that_a_task_says_is_markup() -> None:
    """Its name, its id, its note, its queue, its worker; in every page that has them."""
    row = lease(
        task=HOSTILE,
        id=HOSTILE,
        queue=HOSTILE,
        shown_as=HOSTILE,
        worker=HOSTILE,
        progress=Progress(done=1, total=2, note=HOSTILE),
    )
    watch = Still([row], unavailable=HOSTILE, silent=(HOSTILE,))
    watch.history.take(watch.latest.view, (), watch.latest.wall)
    browser = client(watch)
    for path in ("/", "/timeline", f"/?q={HOSTILE[:9]}", "/?" + "task=%3Cscript%3E"):
        text = browser.get(path).text
        assert "<script>" not in text
        assert "<img" not in text
        assert "\u202e" not in text_of(text)
        assert "\x1b" not in text_of(text)


def test_no_page_has_a_script_or_a_style_of_its_own() -> None:
    """So that the policy can forbid all of them."""
    watch = Still([lease(), lease(1, state="orphaned", runs_again_in=3.0)])
    browser = client(watch)
    for path in ("/", "/timeline", "/?q=nothing"):
        text = browser.get(path).text
        assert re.findall(r"<script(?![^>]*\ssrc=)", text) == []
        assert re.findall(r"<style|\sstyle=|\son[a-z]+=|javascript:|hx-on", text) == []


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("task=video.cut", ["id-00001"]),
        ("worker=w2@here", ["id-00002"]),
        ("queue=slow", ["id-00002"]),
        ("state=orphaned", ["id-00002"]),
        ("state=expires+soon", ["id-00001"]),
        ("q=FRAME", ["id-00001"]),
        ("q=id-00000", ["id-00000"]),
        ("q=nothing+of+it", []),
        ("task=video.cut&state=orphaned", []),
        ("sort=nonsense&page=-3&page=x", ["id-00000", "id-00001", "id-00002"]),
        ("sort=left", ["id-00001", "id-00000", "id-00002"]),
    ],
)
def test_a_query_chooses_and_sorts(query: str, found: list[str]) -> None:
    """Page and JSON alike; what a URL gets wrong is passed over."""
    watch = Still(
        [
            lease(0),
            lease(1, task="video.cut", remaining=9.0, progress=Progress(note="frame 7")),
            lease(2, shown_as="w2@here", queue="slow", state="orphaned", remaining=55.0),
        ]
    )
    browser = client(watch)
    assert [row[1].split()[0] for row in cells(browser.get(f"/?{query}").text)] == found
    said = browser.get(f"/board.json?{query}").json()
    assert [row["id"] for row in said["leases"]] == found


def test_links_keep_the_filter() -> None:
    """Those that sort, those to other pages, and what the page asks for by itself."""
    watch = Still([lease(number, queue="slow") for number in range(PAGE + 1)])
    shown = html.unescape(page(watch, "/?queue=slow&sort=left&q=video"))
    queries = [parse_qs(urlsplit(link).query) for link in re.findall(r'"(/\?[^"]*)"', shown)]
    assert len(queries) > 5
    assert all(each.get("queue") == ["slow"] and each.get("q") == ["video"] for each in queries)
    assert {"page": ["2"], "queue": ["slow"], "q": ["video"], "sort": ["left"]} in queries


def test_fifty_leases_are_shown_at_a_time() -> None:
    """And each of them on one page."""
    watch = Still([lease(number) for number in range(2 * PAGE + 7)])
    found = [row[1].split()[0] for n in (1, 2, 3) for row in cells(page(watch, f"/?page={n}"))]
    assert found == [f"id-{number:05}"[:8] for number in range(2 * PAGE + 7)]
    assert "Page 3 of 3" in page(watch, "/?page=900")


def test_the_json_is_that_of_status() -> None:
    """The same document, with whole ids."""
    watch = Still([lease()])
    said = client(watch).get("/board.json").json()
    expected = json.loads(json.dumps(document(watch.latest.view, watch.latest.view.rows)))
    assert said.keys() == expected.keys()
    assert said["leases"][0].keys() == expected["leases"][0].keys()
    assert (said["workers"], said["leases"][0]["id"]) == (["w1@here"], "id-00000")


def test_the_pages_own_script_gets_the_live_part_alone() -> None:
    """With the address that it asks for the next time."""
    watch = Still([lease()])
    part = client(watch).get("/?queue=celery", headers={"HX-Request": "true"})
    assert part.text.lstrip().startswith("<section")
    assert 'hx-get="/?queue=celery"' in part.text
    assert part.headers["vary"] == "HX-Request"


@pytest.mark.parametrize(
    ("facts", "path", "said"),
    [
        ({}, "/", "A task appears here as soon as a worker has received it."),
        ({"workers": ()}, "/", "No worker replied. Start one: celery -A video worker"),
        ({}, "/?q=x", "No lease matches. 0 leases in all: show all ."),
        ({}, "/timeline", "No task was held in the last 5 minutes."),
    ],
)
def test_an_empty_page_says_what_to_do(facts: dict[str, object], path: str, said: str) -> None:
    """No bare table, and no riddle."""
    assert said in text_of(page(Still(**facts), path))


def test_a_broker_that_is_away_is_named_above_what_was_seen_last() -> None:
    """With its time; the JSON's status says so to programs."""
    watch = Still([lease()], trouble="broker redis://h:6379 does not answer: refused.")
    shown = page(watch)
    assert "No news: broker redis://h:6379 does not answer" in text_of(shown)
    assert "What is shown is as of" in text_of(shown)
    assert len(cells(shown)) == 1
    assert client(watch).get("/board.json").status_code == 503


def test_what_a_broker_does_not_tell_is_said() -> None:
    """In the sentence of the commands."""
    assert "RabbitMQ does not tell" in page(Still(unavailable="RabbitMQ does not tell this"))


def test_ten_thousand_leases_take_less_than_200_ms() -> None:
    """At the server, sorted and filtered; for the second viewer of a look, nearly nothing."""
    watch = Still([lease(number, remaining=float(number % 61)) for number in range(10_000)])
    browser = TestClient(client(watch).app, base_url=HOST)
    browser.get("/?q=id-00001")  # what is loaded once
    looks = [[replace(row) for row in watch.latest.view.rows] for _ in range(3)]

    def cost(page: int) -> float:
        began = time.process_time()
        assert len(cells(browser.get(f"/?sort=left&q=transcode&page={page}").text)) == PAGE
        return time.process_time() - began

    costs = []
    for look in looks:
        watch.show(look)
        costs.append((cost(1), cost(2)))
    first, second = map(min, zip(*costs, strict=True))
    assert first < 0.2
    assert second < first
