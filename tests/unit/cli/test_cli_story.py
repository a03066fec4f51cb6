"""The story of one task, as far as it is known."""

from __future__ import annotations

from typing import Any

import pytest

from celery_lease.cli.results import Result
from celery_lease.cli.story import Facts, story_of
from celery_lease.core.dead import DeadLetter
from celery_lease.core.keys import KeyUse, KeyUser, Parked
from celery_lease.core.records import Recorded, Waiting
from celery_lease.task.checkpoints.looking import Saved
from celery_lease.view import LeaseRow
from celery_lease.view.row import ORPHANED, RESTING

NOW = 1893456100.0  # 2030-01-01 00:01:40 UTC
LOSS = {
    "deliveries": 1,
    "worker": "w0@h:9:ab",
    "since": NOW - 90,
    "ended": NOW - 60,
    "reason": "expired",
}


def row(**facts: Any) -> LeaseRow:
    """Return a lease as its worker describes it."""
    usual = {
        "hostname": "w1@h",
        "task": "proj.work",
        "id": "x",
        "state": "running",
        "lost": None,
        "queue": "q",
        "held_since": NOW - 50,
        "started_at": NOW - 50,
        "beat_age": 3.2,
        "remaining": 41.0,
        "quiet": None,
        "progress": {"done": 3.0, "total": 8.0, "note": "encoding"},
        "cancelled": False,
        "deliveries": 2,
        "losses": 1,
        "max_deliveries": 5,
        "token": 77,
        "pid": 42,
        "mode": "heartbeat",
        **facts,
    }
    return LeaseRow.from_reply("w1@h", "w1@h", usual)


def recorded(**facts: Any) -> LeaseRow:
    """Return a lease as its broker has it."""
    usual: dict[str, Any] = {
        "tag": "t#1",
        "task_id": "x",
        "task": "proj.work",
        "queue": "q",
        "worker": "w1@h:7:cd",
        "token": 77,
        "deliveries": 2,
        "losses": 1,
        "since": NOW - 50,
        "remaining": 41.0,
    }
    lease = Recorded(**{**usual, **facts})
    return LeaseRow.recorded(lease, RESTING if lease.resting else ORPHANED)


def test_a_parked_task_is_told_with_its_key_its_holder_and_its_position() -> None:
    """And what happens next, also where nobody holds the key any more."""
    users = [
        KeyUser(
            tag=f"{each}#1",
            task="proj.work",
            task_id=each,
            queue="q",
            worker="w1@h:7:cd",
            since=NOW - 50,
            limit=1,
        )
        for each in ("holder", "first", "x")
    ]
    use = KeyUse(key="import:7", limit=1, holders=users[:1], parked=users[1:])
    text = story(parked=Parked(use=use, user=users[2], position=2))
    assert (
        "proj.work[x] waits for key import:7, held by proj.work[holder] on w1@h since "
        "2030-01-01 00:00:50 UTC; position 2 of 2, since 2030-01-01 00:00:50 UTC (50s)."
    ) in text
    assert "the first in the line is returned to the front of its queue" in text
    free = KeyUse(key="import:7", limit=1, parked=users[1:])
    text = story(parked=Parked(use=free, user=users[2], position=2))
    assert "which nobody holds" in text
    assert "returns it to the front of queue q" in text


def story(**facts: Any) -> str:
    """Tell it on Redis, unless said otherwise."""
    redis: dict[str, Any] = {
        "replied": 1,
        "broker": "redis",
        "records": True,
        "reaps": True,
        "result": Result(state="PENDING"),
        "dead_letter_queue": "{queue}.dead",
    }
    return "\n".join(story_of(Facts(task_id="x", **{**redis, **facts}), NOW))


def test_a_running_task_is_told_with_its_past_and_its_future() -> None:
    """Who, since when, the last beat, why it was lost before, when it is lost if nothing comes."""
    assert story(held=[row()], recorded=[recorded()], losses=[LOSS]).splitlines() == [
        "Deliveries that were lost, of the last week: 1",
        (
            "  delivery 1 to w0@h:9:ab: received 2030-01-01 00:00:10 UTC, ended "
            "2030-01-01 00:00:40 UTC, expired"
        ),
        (
            "proj.work[x] runs on w1@h, process 42, since 2030-01-01 00:00:50 UTC (50s), "
            "delivery 2, token 77."
        ),
        "Its last beat was 3.2s ago; it said: 3/8 (38%), encoding",
        "Next: its lease expires in 41s unless it beats.",
        (
            "If it is lost, the reaper of any worker returns it to queue q within 10s; "
            "4 more losses make it a dead letter, in queue q.dead."
        ),
    ]


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"mode": "daemon"}, "in lease_mode 'daemon' its lease, of another 41s, is kept"),
        ({"quiet": 300.0}, "it announced a quiet period of another 5m00s"),
        ({"cancelled": True}, "it is cancelled; its beats raise TaskCancelled"),
        ({"state": "lost", "lost": "expired"}, "Its lease is lost (expired): its next beat raises"),
        ({"losses": 5}, "it goes to queue q.dead instead of being run again"),
        ({"progress": {"done": 3, "rate": 0.5}}, "it said: 3, 0.5 a second over all runs"),
        ({"progress": {"done": None, "total": None, "note": ""}}, "nothing of its progress"),
    ],
)
def test_what_comes_next_depends_on_how_the_task_runs(facts: dict[str, Any], words: str) -> None:
    """Not every silence is a loss."""
    assert words in story(held=[row(**facts)])


def test_a_reserved_task_is_told_with_what_it_waits_for() -> None:
    """Its ETA, or a slot."""
    waiting = row(started_at=None, beat_age=None, state="reserved")
    assert "proj.work[x] waits at w1@h since 2030-01-01 00:00:50 UTC (50s)" in story(held=[waiting])
    assert "it starts when a slot of that worker is free" in story(held=[waiting])
    assert "at its ETA, 2030-01-02, and" in story(held=[waiting], eta="2030-01-02")


def test_a_holder_that_does_not_reply_is_told_from_the_record() -> None:
    """With what happens if it is dead, has lost it already, or nobody holds it."""
    assert "is held by w1@h:7:cd, which did not reply" in story(recorded=[recorded()])
    expired = story(recorded=[recorded(remaining=-7.0)])
    assert "its lease expired 7.0s ago" in expired
    assert "celery -A APP lease reap" in expired
    assert "3 more losses make it a dead letter" in expired
    resting = story(recorded=[recorded(remaining=4.0, resting=True, losses=2)])
    assert "in backoff after its loss for 4.0s more; then the reaper of any worker" in resting
    assert "2 more losses make it a dead letter" in resting  # the third one is why it rests


def test_a_waiting_message_is_told_with_its_place() -> None:
    """And that nobody is there to take it."""
    waiting = Waiting(queue="q", ahead=7, tag="t", task="proj.work", deliveries=1, losses=1)
    text = story(waiting=waiting, losses=[LOSS], replied=0)
    assert "waits in queue q, 7 before it, delivered 1 time so far, lost 1 time" in text
    assert "no worker replied" in text
    assert "no worker replied" not in story(waiting=waiting)


def test_a_dead_letter_is_told_with_the_way_back() -> None:
    """Since when, why, and the command."""
    letter = DeadLetter(
        task_id="x",
        task="proj.work",
        queue="q.dead",
        origin="q",
        died_at=NOW,
        losses=5,
        history=(LOSS,),
        text=b"",
    )
    text = story(dead=[letter])
    assert "is a dead letter in queue q.dead since 2030-01-01 00:01:40 UTC" in text
    assert "delivery 1 to w0@h:9:ab" in text
    assert "celery -A APP lease dead retry x" in text


def test_a_task_that_is_over_is_told_by_its_result() -> None:
    """What a backend says and since when, or that it says nothing."""
    over = Result(state="SUCCESS", done_at=NOW)
    said = "Task x has been over since 2030-01-01 00:01:40 UTC: its result is SUCCESS."
    assert story(result=over) == said
    failed = Result(state="FAILURE", error="ValueError: no film", worker="w1@h")
    text = story(result=failed, broker="amqp", records=False, askable=False)
    assert text == "Task x is over: its result is FAILURE, ValueError: no film, run by w1@h."
    assert "in the result backend is RETRY" in story(result=Result(state="RETRY"))
    assert "result backend says nothing" in story(result=None, held=[row()])


def test_a_whole_id_that_nobody_knows_is_not_asked_for_again() -> None:
    """As short ids are that somebody gave by hand."""
    unknown = Facts(task_id="i" * 36, replied=1, broker="redis", records=True)
    assert "give the whole id" not in "\n".join(story_of(unknown, NOW))


def test_a_task_that_nobody_knows_is_told_as_such() -> None:
    """Who was asked, and what that may mean."""
    text = story()
    assert "Nobody knows x: not the 1 worker that replied, the broker or the result" in text
    assert "give the whole id" in text
    assert not Facts(task_id="x", replied=1).is_known


@pytest.mark.parametrize(
    ("broker", "askable", "words"),
    [
        (
            "amqp",
            True,
            ["not the 2 workers that replied or the result backend. It waits", "list_queues"],
        ),
        ("sqs", False, ["not the dead-letter queues or the", "SQS cannot be asked", "NotVisible"]),
        (
            "pgmq",
            False,
            [
                "backend. A worker has it, or it waits",
                "pgmq cannot be asked",
                "pgmq.q_QUEUE WHERE",
                "->>'id' = 'x'",
            ],
        ),
    ],
)
def test_what_a_broker_cannot_tell_is_told_with_where_to_look(
    broker: str, askable: bool, words: list[str]
) -> None:
    """Without a record of its own, and where even workers cannot be asked."""
    facts = {"broker": broker, "records": False, "askable": askable, "searched": not askable}
    text = story(replied=2, **facts)
    assert not [each for each in words if each not in text], text
    assert "cannot be asked" not in text or not askable
    assert "Why earlier deliveries ended is in the workers' logs." in text


def test_a_broker_with_a_rule_of_its_own_is_not_spoken_for() -> None:
    """RabbitMQ gives out again what is not acknowledged, and has its own limits."""
    text = story(held=[row()], broker="amqp", records=False, reaps=False, dead_letter_queue="")
    assert "RabbitMQ delivers it again from queue q; 1 of its deliveries was lost so far" in text


def test_a_checkpoint_is_told_with_its_age_and_loops() -> None:
    """Where it cannot be read, that is told, and the rest of the story with it."""
    saved = "2030-01-01T00:01:20.123456+00:00"
    kept = Saved("proj.work", 77, saved, 214, ("rows",), {"secret": 1})
    said = "\n".join(story_of(Facts(task_id="x", replied=1, held=[row()], checkpoint=kept), NOW))
    assert "saved at 2030-01-01 00:01:20 UTC by the run with token 77: 214 bytes" in said
    assert "with the place of 1 loop." in said
    assert "secret" not in said
    plain = Saved("proj.work", 77, saved, 1, (), None)
    said = "\n".join(story_of(Facts(task_id="x", replied=1, checkpoint=plain), NOW))
    assert "77: 1 byte." in said
    for saved, shown in {"": "an unknown time", "yesterday": "yesterday"}.items():
        kept = Saved("proj.work", 77, saved, 1, (), None)
        said = "\n".join(story_of(Facts(task_id="x", replied=1, checkpoint=kept), NOW))
        assert f"saved at {shown} by the run" in said
    cancelled = Facts(task_id="x", replied=1, checkpoint=plain, result=Result(state="REVOKED"))
    first, *_ = story_of(cancelled, NOW)
    assert first == "Task x is over: its result is REVOKED."
    said = "\n".join(
        story_of(Facts(task_id="x", replied=1, held=[row()], unread="OSError: no"), NOW)
    )
    assert "Its checkpoint could not be read: OSError: no" in said
    assert "proj.work[x] runs" in said
