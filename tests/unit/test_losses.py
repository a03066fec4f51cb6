"""What a worker knows of losses where the broker does not tell."""

from __future__ import annotations

from celery_lease.brokers.losses import Losses


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
