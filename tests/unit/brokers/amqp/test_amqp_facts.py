"""What the RabbitMQ driver makes of what little the broker tells: counts, timeouts, tokens."""

from __future__ import annotations

import logging
import math
import sys
from typing import TYPE_CHECKING

import pytest

from celery_lease.brokers.amqp import limits
from celery_lease.brokers.amqp.counts import HEADER, Counts
from celery_lease.brokers.amqp.limits import (
    ARGUMENT,
    OPTION,
    TYPE,
    Limit,
    consumer_cancelled,
    consumer_timeout,
    faulty_option,
    learn,
    spends_budget,
)
from celery_lease.brokers.amqp.tokens import Tokens

if TYPE_CHECKING:
    from collections.abc import Mapping


def test_a_quorum_queues_count_is_taken() -> None:
    """It is the number of earlier deliveries."""
    assert Counts().count("m", {HEADER: 3}, redelivered=True) == 4


def test_a_classic_queues_deliveries_are_counted_by_who_sees_them() -> None:
    """Each one that this worker saw, and at least two for what it did not."""
    counts = Counts()
    seen = [counts.count("m", {}, redelivered=again) for again in (False, True, True)]
    assert seen == [1, 2, 3]
    assert counts.count("seen by others", {}, redelivered=True) == 2


def test_a_retry_is_a_first_delivery() -> None:
    """It has the task's id, and maybe its predecessor's headers, but was not delivered before."""
    counts = Counts()
    counts.count("m", {}, redelivered=True)
    assert counts.count("m", {HEADER: 5}, redelivered=False) == 1
    assert counts.count("m", {}, redelivered=True) == 2


def test_only_so_many_counts_are_remembered() -> None:
    """What was not seen for longest is forgotten first."""
    counts = Counts(remembered=2)
    for message in ("a", "b", "a", "c"):
        counts.count(message, {}, redelivered=True)
    assert counts.count("a", {}, redelivered=True) == 4
    assert counts.count("b", {}, redelivered=True) == 2


def test_a_message_that_was_delivered_once_leaves_nothing() -> None:
    """A worker of short tasks sees millions."""
    counts = Counts()

    def count(numbers: range) -> None:
        for number in numbers:
            counts.count(f"message-{number}", {}, redelivered=False)

    count(range(100))
    before = sys.getallocatedblocks()
    count(range(100, 1100))
    assert sys.getallocatedblocks() - before < 100


@pytest.mark.parametrize(
    ("options", "arguments", "seconds"),
    [
        ({}, [{}, {}], 1800.0),
        ({OPTION: 7200}, [{}, {}], 7200.0),
        ({OPTION: 0}, [{}], math.inf),
        ({OPTION: 7200}, [{}, {ARGUMENT: 60_000}], 60.0),
        ({}, [{ARGUMENT: 5000}, {ARGUMENT: 60_000}], 5.0),
    ],
)
def test_the_nearest_word_on_the_consumer_timeout_counts(
    options: Mapping[str, object], arguments: list[Mapping[str, object]], seconds: float
) -> None:
    """The consumer's argument, the queue's, the option, the server's default."""
    assert consumer_timeout(options, arguments, "3.13.7") == seconds


@pytest.mark.parametrize(
    ("options", "arguments", "version", "seconds"),
    [
        ({}, {}, "4.2.3", 1800.0),
        ({}, {}, "4.3.0", math.inf),
        ({}, {TYPE: "classic"}, "4.3.0", math.inf),
        ({}, {TYPE: "quorum"}, "4.3.0", 1800.0),
        ({}, {TYPE: "quorum", ARGUMENT: 5000}, "4.3.0", 5.0),
        ({OPTION: 7200}, {}, "4.3.0", 7200.0),
        ({}, {}, "", 1800.0),
    ],
)
def test_a_classic_queue_has_no_timeout_since_4_3(
    options: Mapping[str, object], arguments: Mapping[str, object], version: str, seconds: float
) -> None:
    """A queue that names no type is one, until RabbitMQ has cancelled a consumer."""
    assert consumer_timeout(options, [{}, arguments], version) == seconds


def test_a_cancelled_consumer_casts_doubt_on_queues_of_no_type(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Their virtual host may have made them quorum queues."""
    monkeypatch.setattr(limits, "_assumed_type", ["classic"])
    consumer_cancelled("q")
    assert consumer_timeout({}, [{}], "4.3.0") == 1800.0
    assert consumer_timeout({}, [{TYPE: "classic"}], "4.3.0") == math.inf


@pytest.mark.parametrize(
    ("value", "is_faulty"),
    [
        (1800, False),
        ("90", False),
        (0, False),
        (None, False),
        ("30m", True),
        (-1, True),
        ([], True),
    ],
)
def test_a_consumer_timeout_that_is_no_number_of_seconds_is_named(
    value: object, *, is_faulty: bool
) -> None:
    """With its value, and what to set."""
    fault = faulty_option({OPTION: value})
    assert (fault is not None) is is_faulty
    assert fault is None or repr(value) in fault[0]


@pytest.mark.parametrize(("timeout", "longest"), [(1800, 1740), (9, 6), (math.inf, math.inf)])
def test_a_lease_ends_before_the_consumer_timeout(timeout: float, longest: float) -> None:
    """So long before that its message can be returned in time."""
    assert Limit("q", timeout).seconds == longest


def test_a_lease_that_is_cut_short_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    """With what to change; not for a lease that ends in time."""
    limit = Limit("videos", 1800)
    with caplog.at_level(logging.WARNING):
        limit.log_if_short(600)
        assert not caplog.messages
        limit.log_if_short(43200)
        limit.log_if_short(43200)
    (message,) = caplog.messages
    for text in ("queue videos", "1740 s", "lease_max_duration is 43200", OPTION, ARGUMENT):
        assert text in message


def test_tokens_grow_though_the_clock_does_not() -> None:
    """Also when it is set back, and they follow it when it goes on."""
    tokens, now = Tokens(), 1_900_000_000.25
    first, second = tokens.next(now), tokens.next(now - 1.0)
    third = tokens.next(now + 5.0)
    assert first < second < third
    assert third - first == 5_000_000
    assert third < 2**53


@pytest.mark.parametrize(
    ("headers", "arguments", "version", "ends"),
    [
        ({HEADER: 19}, {}, "4.0.5", False),
        ({HEADER: 20}, {}, "4.0.5", True),
        ({HEADER: 20, "x-acquired-count": 25}, {}, "4.2.0", True),
        ({HEADER: 20}, {}, "4.3.0", False),
        ({HEADER: 20}, {}, "3.13.7", False),
        ({HEADER: 3}, {"x-delivery-limit": 3}, "3.10.8", True),
        ({HEADER: 20}, {"x-delivery-limit": 50}, "4.1.0", False),
        ({HEADER: 500}, {"x-delivery-limit": -1}, "4.1.0", False),
        ({}, {}, "4.0.5", False),
        ({HEADER: 20}, {}, "", False),
    ],
)
def test_a_return_that_would_end_a_message_is_known(
    headers: Mapping[str, object], arguments: Mapping[str, object], version: str, *, ends: bool
) -> None:
    """By the rules of RabbitMQ's releases: no limit before 4.0, 20 then, free returns from 4.3."""
    assert spends_budget(headers, [{}, arguments], version) is ends


def test_the_counts_of_rabbitmq_4_are_read() -> None:
    """From 4.3 on an orderly return leaves the count as it was; it is a delivery all the same."""
    counts = Counts()
    assert counts.count("m", {HEADER: 0}, redelivered=False) == 1
    assert counts.count("m", {HEADER: 0, "x-acquired-count": 1}, redelivered=True) == 2
    assert counts.count("m", {HEADER: 2, "x-acquired-count": 7}, redelivered=True) == 3


def test_a_timeout_that_the_server_names_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the moment on at which it has closed a channel for it."""
    monkeypatch.setattr(limits, "_reported", [])
    assert not learn("PRECONDITION_FAILED - unknown delivery tag 7")
    assert consumer_timeout({}, [{}], "4.2.0") == 1800.0
    assert learn(
        "(0, 0): (406) PRECONDITION_FAILED - delivery acknowledgement on channel 1 timed out. "
        "Timeout value used: 9000 ms. This timeout value can be configured, see consumers doc guide"
    )
    assert consumer_timeout({OPTION: 60}, [{}], "4.2.0") == 9.0
