"""Why leases are lost: the words that operators and other versions know, and what follows."""

from __future__ import annotations

import pytest

from celery_lease.core.loss import (
    CONSEQUENCES,
    FLAG_BROKER_LIMIT,
    FLAG_CANCELLED,
    FLAG_MAX_DURATION,
    FLAG_OUT_OF_TIME,
    FLAG_SHUTDOWN,
    FLAG_SUPERSEDED,
    FLAGS_FINAL,
    LossReason,
    reason_in,
)

#: The text in logs, errors, events and what brokers keep of a loss; the label of the metrics.
KNOWN = {
    "expired": "expired",
    "another delivery owns the message": "taken",
    "lease_max_duration reached": "max_duration",
    "the broker holds no message longer": "limit",
    "its result could not be stored": "result_not_stored",
}


def test_the_words_of_the_version_before_are_those_of_this_one() -> None:
    """Alerts and dashboards read them, and workers of both versions write them at one broker."""
    assert {str(each): CONSEQUENCES[each].label for each in LossReason} == KNOWN


@pytest.mark.parametrize(
    "reason", [each for each in LossReason if each is not LossReason.RESULT_NOT_STORED]
)
def test_a_task_reads_the_reason_in_its_flags(reason: LossReason) -> None:
    """Other flags beside it change nothing; without one there is no reason."""
    flags = CONSEQUENCES[reason].flags
    assert reason_in(flags) is reason
    assert reason_in(flags | FLAG_SHUTDOWN | FLAG_CANCELLED) is reason
    assert reason_in(FLAG_SHUTDOWN | FLAG_CANCELLED | FLAG_OUT_OF_TIME) is None


def test_the_first_reason_is_the_cause_of_those_that_came_later() -> None:
    """A lease that reached a limit is taken by another delivery after that."""
    flags = CONSEQUENCES[LossReason.SUPERSEDED].flags
    assert reason_in(flags | FLAG_MAX_DURATION) is LossReason.MAX_DURATION
    assert reason_in(flags | FLAG_BROKER_LIMIT) is LossReason.BROKER_LIMIT


def test_a_limit_of_time_ends_the_storing_of_an_outcome_and_a_doubt_does_not() -> None:
    """Of an expired lease the broker may say that it is still its own."""
    assert FLAGS_FINAL == FLAG_OUT_OF_TIME | FLAG_MAX_DURATION | FLAG_BROKER_LIMIT
    assert not FLAGS_FINAL & (FLAG_SUPERSEDED | CONSEQUENCES[LossReason.EXPIRED].flags)
