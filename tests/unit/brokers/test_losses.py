"""What a worker knows of losses where the broker does not tell."""

from __future__ import annotations

import json
import sys

from celery_lease.brokers.losses import KEPT, KEPT_OF_EACH, ROOM, Losses


def test_a_loss_counts_for_the_next_delivery_of_its_message() -> None:
    """Once, and for no other message."""
    losses = Losses()
    assert losses.delivered("a1", "a", again=False) == 0
    losses.delivered("b1", "b", again=False)
    losses.lost("a1")
    losses.lost("a1")
    assert losses.delivered("a2", "a", again=True) == losses.of("a2") == 1
    assert losses.delivered("b2", "b", again=True) == 0


def test_a_delivery_that_ended_in_order_is_none() -> None:
    """Nor is one that nobody here knows the end of."""
    losses = Losses()
    losses.delivered("a1", "a", again=False)
    assert losses.delivered("a2", "a", again=True) == 0


def test_what_is_back_before_its_end_is_known_was_lost_if_its_task_had_begun() -> None:
    """Once: what its worker says of its end later changes nothing."""
    losses = Losses()
    losses.delivered("a1", "a", again=False)
    assert losses.waits("a1")
    losses.begin(["a1", "unknown"])
    assert not losses.waits("a1")
    assert losses.delivered("a2", "a", again=True) == 1
    losses.lost("a1")
    assert losses.delivered("a3", "a", again=True) == 1
    assert [each["reason"] for each in losses.history("a3")] == ["expired"]


def test_what_is_back_after_an_orderly_end_was_not_lost() -> None:
    """The broker may serve it again before it is told."""
    losses = Losses()
    losses.delivered("a1", "a", again=False, waits=False)
    losses.ended(["a1"])
    assert losses.delivered("a2", "a", again=True) == 0


def test_a_message_that_ended_in_order_leaves_nothing() -> None:
    """A worker of short tasks sees millions."""
    losses = Losses()

    def deliver(numbers: range) -> None:
        for number in numbers:
            losses.delivered(f"tag-{number}", f"message-{number}", again=False)
            losses.ended([f"tag-{number}"])

    deliver(range(100))
    before = sys.getallocatedblocks()
    deliver(range(100, 1100))
    assert sys.getallocatedblocks() - before < 100


def test_a_first_delivery_forgets_what_bore_its_name() -> None:
    """A retry is another message of the same task."""
    losses = Losses()
    losses.delivered("a1", "a", again=False)
    losses.lost("a1")
    assert losses.delivered("a2", "a", again=False) == 0


def test_messages_without_a_name_are_not_taken_for_each_other() -> None:
    """Those of plain kombu producers have none on RabbitMQ."""
    losses = Losses()
    losses.delivered("a1", "", again=False)
    losses.lost("a1")
    assert losses.delivered("b2", "", again=True) == 0


def test_the_longest_unseen_is_forgotten() -> None:
    """A worker that runs for months keeps no book of all that it ever had."""
    losses = Losses(remembered=2)
    for name in "abc":
        losses.delivered(f"{name}1", name, again=False)
    losses.lost("a1")
    losses.lost("b1")
    assert losses.delivered("a2", "a", again=True) == 0
    assert losses.delivered("b2", "b", again=True) == 1


def test_what_was_known_of_a_loss_is_kept_with_its_message() -> None:
    """With what is known of the delivery; until the message is another one."""
    losses = Losses()
    losses.delivered("a1", "a", again=False, worker="w", since=1.0)
    losses.lost("a1", {"cause": "SIGSEGV"})
    losses.lost("a1", {"cause": "again"})
    losses.delivered("a2", "a", again=True)
    (history,) = losses.history("a2")
    assert history.pop("since") == 1.0 < history.pop("ended")
    assert history == {"reason": "given up", "worker": "w", "cause": "SIGSEGV"}
    losses.ended(["a2"])
    assert losses.history("a2") == []
    losses.delivered("a3", "a", again=False)
    assert losses.history("a3") == []


def test_a_history_fits_beside_its_message() -> None:
    """The latest losses are kept longest, and their stacks."""
    losses = Losses()
    for number in range(KEPT_OF_EACH + 5):
        losses.delivered(f"a{number}", "a", again=True, number=number, since=1.9e9 + 1 / 7)
        losses.lost(f"a{number}", {"stack": "x" * 2000})
    losses.delivered("a", "a", again=True)
    history = losses.history("a")
    assert len(json.dumps(history)) <= ROOM
    assert [each["number"] for each in history] == list(range(5, KEPT_OF_EACH + 5))
    assert "stack" in history[-1]
    assert "stack" not in history[0]
    few = losses.history("a", 300)
    assert len(json.dumps(few)) <= 300
    assert [each["number"] for each in few] == [22, 23, 24]
    assert losses.history("a", -5) == []


def test_of_many_messages_only_the_last_histories_are_kept() -> None:
    """A stack is long; the count stays."""
    losses = Losses()
    for number in range(KEPT + 1):
        losses.delivered(f"{number}.1", f"{number}", again=False)
        losses.lost(f"{number}.1", {"cause": "c"})
    assert losses.delivered("0.2", "0", again=True) == 1
    assert losses.history("0.2") == []
    losses.delivered("1.2", "1", again=True)
    assert len(losses.history("1.2")) == 1
