"""Fencing tokens made from what SQS says of a delivery."""

from __future__ import annotations

from hypothesis import given, strategies as st

from celery_lease.brokers.sqs.fencing import fencing_token

SECONDS = st.integers(1_700_000_000, 2_147_483_647)
COUNTS = st.integers(1, 1000)
AGES = st.integers(0, 14 * 86_400_000)


@given(SECONDS, st.integers(1, 10**8), COUNTS, AGES, AGES)
def test_a_delivery_in_a_later_second_has_the_greater_token(
    early: int, later: int, count: int, age: int, other_age: int
) -> None:
    """Whichever message of the task it is of, and however often that was received."""
    late = min(early + later, 2**31)
    first = fencing_token(early, early * 1000 - age, count)
    assert first < fencing_token(late, late * 1000 - other_age, 1)


@given(SECONDS, AGES, COUNTS)
def test_a_redelivery_within_the_second_has_the_greater_token(
    second: int, age: int, count: int
) -> None:
    """SQS counts receives."""
    sent = second * 1000 - age
    assert fencing_token(second, sent, count) < fencing_token(second, sent, count + 1)


@given(SECONDS, st.integers(0, 998), AGES, COUNTS)
def test_a_retry_within_the_second_has_the_greater_token(
    second: int, sent_at: int, age: int, count: int
) -> None:
    """The retry's message was sent after its predecessor was received, in this second."""
    original = fencing_token(second, second * 1000 - age, count)
    assert original < fencing_token(second, second * 1000 + sent_at + 1, 1)


@given(SECONDS, st.none() | AGES, st.integers(1, 10**9))
def test_a_token_is_exact_as_a_double(second: int, age: int | None, count: int) -> None:
    """Stores that keep numbers as doubles must not merge two tokens."""
    sent = None if age is None else second * 1000 - age
    assert 0 < fencing_token(second, sent, count) < 2**53
