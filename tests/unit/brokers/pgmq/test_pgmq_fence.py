"""A delivery of pgmq as a tag, in a statement, and as a token."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, strategies as st

from celery_lease.brokers.pgmq.fence import Delivery
from celery_lease.brokers.pgmq.statements import Act, parameters, statement

deliveries = st.builds(
    Delivery,
    queue=st.from_regex(r"[A-Za-z0-9_]{1,40}", fullmatch=True) | st.just("with-dashes"),
    msg_id=st.integers(1, 2**63 - 1),
    read_ct=st.integers(1, 2**31 - 1),
    read_at=st.datetimes(datetime(2000, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001
)


@given(deliveries)
def test_a_tag_says_all_of_its_delivery(delivery: Delivery) -> None:
    """To the microsecond, so that another process can name the row."""
    assert Delivery.parse(delivery.tag) == delivery


@given(deliveries)
def test_a_token_is_exact_wherever_numbers_are_doubles(delivery: Delivery) -> None:
    """Also where JSON or a spreadsheet carries it."""
    assert int(float(delivery.token)) == delivery.token


@given(deliveries, st.integers(1, 10**12))
def test_a_later_reading_has_a_greater_token(delivery: Delivery, later: int) -> None:
    """Of whichever message, with whatever count: a retry's starts at one again."""
    read_at = delivery.read_at + timedelta(microseconds=later)
    assert Delivery("q", 1, 1, read_at).token > delivery.token


def test_a_text_that_is_no_tag_is_refused() -> None:
    """A tag of another broker is a mistake, not a delivery."""
    with pytest.raises(ValueError, match="unpack"):
        Delivery.parse("6a3b")


@pytest.mark.parametrize("act", Act)
def test_a_statement_has_places_for_five_arrays_of_each_queue(act: Act) -> None:
    """However many queues there are, it is one; a claim has causes and its worker, too."""
    delivery = Delivery("a", 1, 1, datetime.now(UTC))
    text = statement(act, ("a", "B")).as_string(None)
    assert len(parameters([delivery], [1.0], [False])) == 5
    assert text.count("%s") == 2 * (7 if act is Act.CLAIM else 5)
    assert '"pgmq"."q_a"' in text
    assert '"pgmq"."q_b"' in text, "pgmq's tables are in lower case"


def test_a_queues_name_cannot_leave_its_quotes() -> None:
    """A tag comes back from a task's process: it is data."""
    assert '"q_x"" --"' in statement(Act.COMPLETE, ('x" --',)).as_string(None)
