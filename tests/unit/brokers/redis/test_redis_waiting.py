"""Redis: what an idle channel does next, step by step; no server."""

from __future__ import annotations

import pytest

from celery_lease.brokers.redis.waiting import LINE, WATCH, Step, Waiting

QUEUES = ["a", "b"]


def idle(*numbers: int, now: float = 100.0, queues: list[str] = QUEUES) -> Waiting:
    """Return a channel that has looked and found nothing; it watches the queues so numbered."""
    waiting = Waiting()
    waiting.stance("me", queues, now)
    waiting.found_nothing(numbers, now)
    return waiting


def hearing(*numbers: int, now: float = 100.0) -> Waiting:
    """Return one that the server tells of changes, too."""
    waiting = idle(*numbers, now=now)
    waiting.begins_to_hear()
    waiting.hears_already(0)
    return waiting


def test_a_new_channel_looks_first_and_takes_over() -> None:
    """Its worker's former one may have died with the places that it had."""
    waiting = Waiting()
    assert waiting.next(QUEUES, 100.0) is Step.LOOK
    stance = waiting.stance("me", QUEUES, 100.0)
    assert (stance.channel, stance.queues, stance.letters, stance.heard) == (
        "me",
        ("a", "b"),
        "t",
        0,
    )


def test_who_watches_nothing_stands_in_line_and_looks_by_itself_from_time_to_time() -> None:
    """The look when it is time says so, and that is no reason to take over."""
    waiting = idle()
    assert waiting.next(QUEUES, 100.0) is Step.STAND
    assert waiting.next(QUEUES, 100.0 + LINE) is Step.LOOK
    assert waiting.stance("me", QUEUES, 100.0).letters == "i"


def test_who_watches_all_asks_to_be_told_and_then_rests() -> None:
    """And looks for itself from time to time, too."""
    waiting = idle(1, 2)
    assert waiting.watched == ("a", "b")
    assert waiting.next(QUEUES, 100.0) is Step.WATCH
    waiting.begins_to_hear()
    waiting.hears_already(0)
    assert waiting.next(QUEUES, 100.0) is Step.REST
    assert waiting.next(QUEUES, 100.0 + WATCH) is Step.LOOK
    assert waiting.stance("me", QUEUES, 110.0).letters == "wi"
    waiting.found_nothing((1, 2), 110.0)
    assert waiting.next(QUEUES, 110.0) is Step.REST  # it is told still


def test_a_place_is_renewed_before_it_expires() -> None:
    """Not by each look: that would be a command more."""
    waiting, said = hearing(1, 2), []
    for look in range(1, 7):
        now = 100.0 + look * WATCH
        said.append("r" in waiting.stance("me", QUEUES, now).letters)
        waiting.found_nothing((1, 2), now)
    assert said == [False, True, False, True, False, True]


def test_who_watches_some_is_told_of_these_and_stands_in_line_for_the_others() -> None:
    """And looks as often as who stands in line."""
    waiting = idle(2)
    assert waiting.next(QUEUES, 100.0) is Step.WATCH
    waiting.begins_to_hear()
    waiting.hears_already(0)
    assert waiting.next(QUEUES, 100.0) is Step.STAND
    assert waiting.next(QUEUES, 100.0 + LINE) is Step.LOOK


def test_a_message_that_came_before_the_server_tells_is_looked_for() -> None:
    """The answer says that a list is not empty; a key that is no list does not count."""
    waiting = idle(1, 2)
    waiting.begins_to_hear()
    waiting.hears_already(1)
    assert waiting.next(QUEUES, 100.0) is Step.LOOK

    waiting.found_nothing((1, 2), 100.0, wrong=1)
    waiting.begins_to_hear()
    waiting.hears_already(1)
    assert waiting.next(QUEUES, 100.0) is Step.REST


def test_news_that_come_before_the_answer_are_not_forgotten() -> None:
    """They come on another connection, so they may be read first."""
    waiting = idle(1, 2)
    waiting.begins_to_hear()
    waiting.changed()
    waiting.hears_already(0)
    assert waiting.next(QUEUES, 100.0) is Step.LOOK


def test_news_that_come_during_a_look_have_the_channel_ask_again() -> None:
    """The look may have been before the change; asking again shows what there is."""
    waiting = hearing(1, 2)
    waiting.stance("me", QUEUES, 100.0)
    waiting.changed()
    waiting.found_nothing((1, 2), 101.0)
    assert waiting.next(QUEUES, 101.0) is Step.WATCH


def test_news_of_what_is_watched_no_more_are_anothers() -> None:
    """Who stands in line stays there."""
    waiting = idle()
    waiting.changed()
    assert waiting.next(QUEUES, 100.0) is Step.STAND


def test_a_bell_is_answered_with_a_look_that_names_its_queue() -> None:
    """So it gets the place that was passed to it, and no other."""
    waiting = idle()
    waiting.rang("b")
    assert waiting.next(QUEUES, 100.0) is Step.LOOK
    assert waiting.stance("me", QUEUES, 100.0).heard == 2
    waiting.found_nothing((2,), 100.0)
    assert waiting.heard == ""
    assert waiting.watched == ("b",)


def test_no_bell_for_as_long_as_it_was_waited_for_is_followed_by_a_look() -> None:
    """Whatever the clock says."""
    waiting = idle()
    waiting.rang("")
    assert waiting.next(QUEUES, 100.0) is Step.LOOK
    assert "i" in waiting.stance("me", QUEUES, 100.0).letters


def test_a_message_that_was_told_of_ends_all_watching_and_another_look_follows() -> None:
    """The script has passed the places on."""
    waiting = hearing(1, 2)
    waiting.changed()
    assert "t" not in waiting.stance("me", QUEUES, 100.0).letters
    assert "i" not in waiting.stance("me", QUEUES, 100.0).letters
    assert not waiting.found()
    assert waiting.watched == ()
    assert waiting.next(QUEUES, 101.0) is Step.LOOK
    assert waiting.stance("me", QUEUES, 100.0).letters == ""


def test_a_message_that_nobody_told_of_has_its_finder_take_over() -> None:
    """Whoever watches is dead, or stopped, or is not told."""
    waiting = idle()
    waiting.rang("")
    waiting.stance("me", QUEUES, 100.0)
    assert waiting.found()
    for _ in range(2):  # others came meanwhile
        assert waiting.stance("me", QUEUES, 100.0).letters == "t"
        assert not waiting.found()
    assert waiting.stance("me", QUEUES, 100.0).letters == "t"
    waiting.found_nothing((1, 2), 101.0)
    assert waiting.takes_over is False


def test_other_queues_are_looked_at_at_once() -> None:
    """One that was added has no watcher yet, perhaps."""
    waiting = hearing(1, 2)
    assert waiting.next([*QUEUES, "c"], 100.0) is Step.LOOK
    waiting.stance("me", [*QUEUES, "c"], 100.0)
    assert not waiting.found()  # nobody could have told of it


@pytest.mark.parametrize("order", [["a", "b"], ["b", "a"]])
def test_the_order_of_queues_is_no_change(order: list[str]) -> None:
    """It rotates."""
    assert hearing(1, 2).next(order, 100.0) is Step.REST


def test_who_takes_no_messages_gives_up_its_places_and_the_bell_it_heard() -> None:
    """Others are to come, once."""
    waiting = hearing(1)
    waiting.rang("b")
    assert set(waiting.leave()) == {"a", "b"}
    assert waiting.leave() == ()
    assert waiting.next(QUEUES, 100.0) is Step.LOOK


def test_of_a_cancelled_queue_the_place_is_given_up_and_of_others_kept() -> None:
    """The next look is at the others only."""
    waiting = hearing(1, 2)
    assert waiting.leave(["b"]) == ("a",)
    assert waiting.watched == ("b",)
    assert waiting.next(["b"], 100.0) is Step.LOOK
