"""The pages beside the board, over what a broker and its workers would say."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import asdict
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import click
import pytest

from celery_lease.cli.dead import facts as letter_facts
from celery_lease.cli.doctor.report import Report, facts as report_facts
from celery_lease.cli.doctor.survey import WorkerAnswer
from celery_lease.cli.explain import document as task_document
from celery_lease.cli.results import Result
from celery_lease.cli.story import Facts
from celery_lease.core.dead import DeadLetter
from celery_lease.core.findings import error, ok
from celery_lease.core.keys import KeyUse, KeyUser
from celery_lease.task.checkpoints.looking import Saved
from celery_lease.web.crew import Hand
from celery_lease.web.pages import Pages
from celery_lease.web.writes import WRITES
from unit.web_pages import Still, cells, client, lease, page, text_of

if TYPE_CHECKING:
    from collections.abc import Iterator

NOW = 1_700_000_000.0
HOSTILE = "<img src=x onerror=alert(1)>\u202e"
LOSS = {
    "deliveries": 1,
    "worker": "w1@here:7:ab",
    "token": 5,
    "since": NOW,
    "ended": NOW + 9,
    "reason": "process died",
    "cause": "SIGKILL",
    "note": HOSTILE,
    "stack": "File a\nFile b",
}


def letter(number: int = 0, **facts: Any) -> DeadLetter:
    usual: dict[str, Any] = {
        "task_id": f"dead-{number:05}",
        "task": "video.publish",
        "queue": "celery.dead",
        "origin": "celery",
        "died_at": NOW,
        "losses": 1,
        "history": (LOSS, {"deliveries": 2, "reason": "expired"}),
        "headers": {"task": "video.publish", "secret": "in the headers"},
        "body": "WyJwYXNzd29yZCJd",
        "text": b"",
    }
    return DeadLetter(**(usual | facts))


class Letters:
    """A queue of dead letters."""

    def __init__(self, *letters: DeadLetter) -> None:
        self.here = list(letters)

    def letters(self, _queue: str) -> Iterator[DeadLetter]:
        return iter(list(self.here))

    def retry(self, letter: DeadLetter) -> bool:
        if letter not in self.here:
            return False
        self.here.remove(letter)
        return True

    purge = retry


@pytest.fixture
def letters(monkeypatch: pytest.MonkeyPatch) -> Letters:
    """Dead letters without a broker."""
    queue = Letters(letter(), letter(1, task=HOSTILE, history=()))

    @contextmanager
    def opened(*_: object) -> Iterator[tuple[Letters, list[str]]]:
        yield queue, ["celery.dead"]

    monkeypatch.setattr("celery_lease.web.pages.opened", opened)
    monkeypatch.setattr("celery_lease.web.writes.opened", opened)
    return queue


def test_dead_letters_are_listed_with_why_they_died(letters: Letters) -> None:
    """Payloads are left out of page and JSON unless they are asked for."""
    watch = Still()
    shown = page(watch, "/dead")
    assert "2 dead letters" in shown
    assert "celery.dead 2023-11-14 22:13:20 1 time expired" in text_of(shown).replace(
        "T22:13:20+00:00", " 22:13:20"
    )
    said = client(watch, show_args=True).get("/dead.json").json()
    assert said == {
        "letters": json.loads(json.dumps([letter_facts(each) for each in letters.here]))
    }
    hidden = client(watch).get("/dead.json").json()["letters"][0]
    assert "body" not in hidden
    assert "headers" not in hidden


def test_a_dead_letter_is_shown_with_its_history(letters: Letters) -> None:
    """Signal, note and stack; the payload only where that was allowed."""
    assert letters.here
    watch = Still()
    shown = text_of(page(watch, "/dead/letter?id=dead-00000"))
    for each in ("process died (SIGKILL)", "File a File b", "w1@here:7:ab", "Came from celery"):
        assert each in shown
    assert "WyJwYXNzd29yZCJd" not in shown
    assert "in the headers" not in shown
    assert "--show-args" in shown
    assert "WyJwYXNzd29yZCJd" in page(watch, "/dead/letter?id=dead-00000", show_args=True)
    assert "No dead letter of task gone" in text_of(page(watch, "/dead/letter?id=gone"))
    assert "No dead letters." in text_of(page_without(letters, watch))


def page_without(letters: Letters, watch: Still) -> str:
    letters.here.clear()
    return page(watch, "/dead")


def crew(*hands: Hand) -> Any:
    return lambda *_: list(hands)


def worker(name: str = "w1@here", **facts: Any) -> WorkerAnswer:
    usual: dict[str, Any] = {
        "leased": True,
        "versions": {"celery": "5.7.0"},
        "queues": ("celery",),
        "settings": {"lease_extension": 60},
        "about": {"worker": f"{name}:7:ab", "pool": "prefork", "pid": 7},
    }
    return WorkerAnswer(name=name, **(usual | facts))


def test_workers_say_what_they_are_and_what_they_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plain one has no button; one that drains can be resumed; one that stops can not."""
    state = {"leases": 3, "running": 2, "keeper_lag": 0.2, "ready": True}
    draining = {**state, "draining": True}
    monkeypatch.setattr(
        "celery_lease.web.pages.crew_of",
        crew(
            Hand(answer=worker(), state=state),
            Hand(answer=worker("w2@here"), state=draining),
            Hand(answer=worker("w3@here"), state={**state, "stopping": True}),
            Hand(answer=worker("w4@here", leased=False, about={}, settings={}, versions={})),
            Hand(answer=worker("w5@here", namesakes=1)),
        ),
    )
    watch = Still(silent=("w9@here",))
    shown = page(watch, "/workers")
    said = text_of(shown)
    for each in (
        "w1@here taking messages Drain…",
        "w2@here draining Resume…",
        "w3@here stopping Leases",
        "w4@here without leases Queues",
        "2 workers have this name",
        "Leases 3, 2 running Keeper's lag 0.2s",
        "lease_extension 60",
        "No reply any more from w9@here",
    ):
        assert each in said
    assert shown.count("<button>") == 3
    assert "<button>" not in page(watch, "/workers", read_only=True)
    names = [each["name"] for each in client(watch).get("/workers.json").json()["workers"]]
    assert names == [f"w{number}@here" for number in range(1, 6)]


def test_keys_are_shown_with_who_holds_and_who_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order in which they are woken; only where the broker has keys."""

    def user(task_id: str, task: str = "t") -> KeyUser:
        facts = {"tag": task_id, "task": task, "queue": "q", "worker": "w", "since": NOW}
        return KeyUser(task_id=task_id, limit=1, **facts)

    use = KeyUse(
        key=HOSTILE, limit=1, holders=[user("id-held")], parked=[user("id-1st", HOSTILE), user("x")]
    )
    monkeypatch.setattr("celery_lease.web.pages.keys_in_use", lambda _: [use])
    watch = Still()
    shown = page(watch, "/keys")
    said = text_of(shown)
    assert "<img" not in shown
    assert "1 of 1 held, 2 messages parked" in said
    assert said.index("holds it") < said.index("parked, number 1") < said.index("parked, number 2")
    assert client(watch).get("/keys.json").json() == {"keys": [asdict(use)]}
    assert 'href="/keys"' in shown
    assert 'href="/keys"' not in page(Still(broker="amqp://"))


def test_the_doctor_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the JSON of the command."""
    report = Report(
        app="video",
        broker="redis://**@h",
        findings=[ok("broker.reached", "it answers"), error("redis.x", HOSTILE, "", "Try `<b>`.")],
    )
    monkeypatch.setattr("celery_lease.web.pages.examine", lambda *_: report)
    watch = Still()
    shown = page(watch, "/doctor")
    assert "<img" not in shown
    assert "Try <code>&lt;b&gt;</code>." in shown
    assert "1 error, 1 ok" in shown
    assert client(watch).get("/doctor.json").json() == report_facts(report)


def facts_of_task(**facts: Any) -> Facts:
    return Facts(task_id="id-00000", replied=1, result=Result(state="STARTED"), **facts)


def test_a_task_has_its_lease_its_history_and_what_comes_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As ``lease explain`` says it, with the lease as a bar and a button to cancel it."""
    row = lease(held_since=NOW, started_at=NOW)
    facts = facts_of_task(held=[row], losses=[LOSS], broker="redis", records=True, reaps=True)
    monkeypatch.setattr("celery_lease.web.pages.facts_in_view", lambda *_: facts)
    watch = Still([row])
    shown = page(watch, "/task?id=id-00000")
    said = text_of(shown)
    assert "<img" not in shown
    for each in (
        "Next: its lease expires in",
        "since 2023-11-14 22:13:20 UTC",
        "process died (SIGKILL)",
        "w1@here:7:ab",
        "Cancel…",
        "token 0",
    ):
        assert each in said
    assert '<time datetime="2023-11-14T22:13:20+00:00">2023-11-14 22:13:20 UTC</time>' in shown
    assert "Cancel…" not in text_of(page(watch, "/task?id=id-00000", read_only=True))
    document = client(watch).get("/task.json?id=id-00000").json()
    assert document.keys() == task_document(facts, NOW).keys()
    assert document["losses"][0]["reason"] == "process died"


def test_arguments_are_shown_only_where_that_was_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As text; nobody is asked for them otherwise."""
    row = lease(held_since=NOW, started_at=NOW)
    facts = facts_of_task(held=[row], broker="redis", records=True)
    monkeypatch.setattr("celery_lease.web.pages.facts_in_view", lambda *_: facts)
    asked: list[tuple[Any, ...]] = []

    def arguments(_app: Any, *about: Any) -> tuple[str, str]:
        asked.append(about[:2])
        return ("['secret']", f"{{'note': '{HOSTILE}'}}")

    monkeypatch.setattr("celery_lease.web.pages.arguments_of", arguments)
    watch = Still([row])
    assert "secret" not in page(watch, "/task?id=id-00000")
    assert asked == []
    shown = page(watch, "/task?id=id-00000", show_args=True)
    assert "[&#39;secret&#39;]" in shown
    assert "<img" not in shown
    assert asked == [("id-00000", "w1@here")]


def test_a_checkpoints_state_is_shown_only_where_that_was_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise when it was saved and how large it is; the JSON never has the state."""
    kept = Saved("video.transcode", 7, "2030-01-01T00:01:20+00:00", 20, (), {"note": HOSTILE})
    facts = facts_of_task(held=[lease()], checkpoint=kept)
    monkeypatch.setattr("celery_lease.web.pages.facts_in_view", lambda *_: facts)
    monkeypatch.setattr("celery_lease.web.pages.arguments_of", lambda *_: None)
    watch = Still([lease()])
    shown = page(watch, "/task?id=id-00000")
    assert "20 bytes" in shown
    assert "<h2>Checkpoint</h2>" not in shown
    shown = page(watch, "/task?id=id-00000", show_args=True)
    assert "<h2>Checkpoint</h2>" in shown
    assert "&#34;note&#34;: &#34;" in shown
    assert "<img" not in shown
    document = client(watch, show_args=True).get("/task.json?id=id-00000").json()
    assert document["checkpoint"] == {
        "task": "video.transcode",
        "token": 7,
        "saved": "2030-01-01T00:01:20+00:00",
        "size": 20,
        "loops": [],
    }


def test_a_running_task_can_be_looked_at_and_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only one that is interruptible has the button; a reader alone can look."""
    facts = facts_of_task(held=[lease()])
    monkeypatch.setattr("celery_lease.web.pages.facts_in_view", lambda *_: facts)
    for row, button in ((lease(interruptible=True), True), (lease(), False)):
        said = text_of(page(Still([row]), "/task?id=id-00000"))
        assert ("Hand over…" in said) is button
        assert "What is it doing?" in said
    said = text_of(page(Still([lease(interruptible=True)]), "/task?id=id-00000", read_only=True))
    assert "Hand over…" not in said
    assert "What is it doing?" in said
    waiting = lease(interruptible=True, started_at=None, state="reserved")
    said = text_of(page(Still([waiting]), "/task?id=id-00000"))
    assert "Hand over…" not in said
    assert "What is it doing?" not in said


def test_a_stack_is_shown_as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """With what the task does; where nobody runs it, that is said."""
    what = {"task": "t", "id": "a", "pid": 7, "doing": "busy on CPU (98%)", "stack": HOSTILE}
    found: list[Any] = [("w1@here", what)]
    monkeypatch.setattr(Pages, "_stacks", lambda _, task_id: found if task_id == "a" else [])
    watch = Still()
    shown = page(watch, "/task/stack?id=a")
    assert "On w1@here, process 7: busy on CPU (98%)" in text_of(shown)
    assert "<img" not in shown
    assert "No worker that replied runs this task now." in page(watch, "/task/stack?id=gone")
    found[0] = ("w1@here", {**what, "stack": ""})
    assert "There is no stack" in page(Still(), "/task/stack?id=a")


def test_a_button_that_cannot_work_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    """On pgmq no worker can be told anything."""
    facts = facts_of_task(askable=False, broker="pgmq", records=True)
    monkeypatch.setattr("celery_lease.web.pages.facts_in_view", lambda *_: facts)
    watch = Still(
        [lease(state="held")], askable=False, unavailable="workers on pgmq cannot be asked"
    )
    assert "Cancel…" not in page(watch, "/task?id=id-00000")
    assert "workers on pgmq cannot be asked" in page(watch)
    assert len(cells(page(watch))) == 1


@pytest.mark.parametrize("path", ["/task?id=x", "/dead", "/dead/letter?id=x", "/workers"])
def test_a_broker_that_is_away_is_named_on_every_page(
    monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """No page fails; their JSON says so with a status of its own."""

    def away(*_: object) -> Any:
        raise click.ClickException("broker redis://h does\nnot answer")

    for name in ("facts_in_view", "opened", "crew_of"):
        monkeypatch.setattr(f"celery_lease.web.pages.{name}", away)
    watch = Still()
    assert "broker redis://h does not answer" in page(watch, path)
    if not path.startswith("/dead/"):
        name, _, query = path.partition("?")
        answer = client(watch).get(f"{name}.json?{query}")
        assert (answer.status_code, answer.json()) == (
            503,
            {"error": "broker redis://h does not answer"},
        )


def test_a_task_that_nobody_knows_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """By programs, from the status; by people, from the sentence. No id: neither."""
    facts = Facts(task_id="x", replied=1, result=Result(state="PENDING"), records=True)
    monkeypatch.setattr("celery_lease.web.pages.facts_in_view", lambda *_: facts)
    watch = Still()
    assert "Nobody knows x" in page(watch, "/task?id=x")
    assert client(watch).get("/task.json?id=x").status_code == 404
    assert "no task was named" in page(watch, "/task")


def test_the_timeline_names_what_it_draws() -> None:
    """Bars are links with a text; JSON has the same deliveries."""
    row = lease(held_since=NOW, started_at=NOW)
    watch = Still([row])
    wall = watch.latest.wall
    row = lease(held_since=wall - 60, started_at=wall - 50)
    watch.show([row])
    watch.history.take(watch.latest.view, ("w1@here:7:ab",), wall)
    shown = page(watch, "/timeline?minutes=15")
    assert 'aria-label="video.transcode [id-00000] on w1@here: held"' in shown
    (said,) = client(watch).get("/timeline.json").json()["deliveries"]
    assert (said["task_id"], said["worker"], said["end"]) == ("id-00000", "w1@here", "held")


def test_a_worker_that_does_not_reply_to_a_command_is_named() -> None:
    """Beside those that did, also under their unique identities."""
    replies = {"w1@here:7:ab": {"ok": "draining"}, "w1@here:8:ab": {"ok": "draining"}}
    site: Any = SimpleNamespace(ask=lambda *_: replies)
    (drain,) = (each for each in WRITES if each.name == "drain")
    assert drain.act(site, ["w1@here", "w2@here"], False) == [  # noqa: FBT003
        ("w1@here:7:ab: draining", True),
        ("w1@here:8:ab: draining", True),
        ("w2@here: no reply within 1 s", False),
    ]
