"""What the SQS driver sends and how it reads answers, against the service's documentation."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("botocore")

from botocore.exceptions import ClientError, EndpointConnectionError, ReadTimeoutError

from celery_lease.core.delivery import Answer, Renewal
from celery_lease.standalone.consumer import LeaseConsumer
from unit.sqs_stub import URL, SqsBench

if TYPE_CHECKING:
    from collections.abc import Callable

HELD, LOST, UNKNOWN = Answer.HELD, Answer.LOST, Answer.UNKNOWN


def throttled() -> ClientError:
    """SQS did nothing, and said so."""
    return ClientError({"Error": {"Code": "RequestThrottled", "Message": "slow down"}}, "Change")


def refused() -> EndpointConnectionError:
    """Nothing reached SQS."""
    return EndpointConnectionError(endpoint_url=URL)


def silent() -> ReadTimeoutError:
    """Nobody knows what SQS did."""
    return ReadTimeoutError(endpoint_url=URL)


@pytest.fixture
def bench() -> SqsBench:
    """A driver on a stub of SQS."""
    return SqsBench()


def extend(bench: SqsBench, *handles: str, seconds: float = 100.0, **options: Any) -> list[Answer]:
    """Ask for extensions as the keeper does."""
    renewals = [Renewal(handle, seconds, **options) for handle in handles]
    return bench.driver.extend(renewals, timeout=5.0)


def test_twenty_five_extensions_are_three_calls(bench: SqsBench) -> None:
    """Extensions go in tens."""
    handles = [f"h{number}" for number in range(25)]
    for handle in handles:
        bench.receive(handle)
    assert extend(bench, *handles) == [HELD] * 25
    assert [len(entries) for _, _, entries in bench.api.calls] == [10, 10, 5]


def test_queues_are_not_mixed_in_a_batch(bench: SqsBench) -> None:
    """A call names one queue, and each answer finds its way back to its question."""
    for handle, url in (("a", URL), ("b", URL + "2"), ("c", URL)):
        bench.receive(handle, url=url)
    bench.api.fail["b"] = {"Code": "ReceiptHandleIsInvalid"}
    assert extend(bench, "a", "b", "c") == [HELD, LOST, HELD]
    assert [url for _, url, _ in bench.api.calls] == [URL, URL + "2"]


def test_a_timeout_is_rounded_up_to_a_second(bench: SqsBench) -> None:
    """SQS counts whole seconds, and a lease must not end there before it ends here."""
    bench.receive()
    extend(bench, "h", seconds=41.2)
    assert bench.api.sent("change")[0]["VisibilityTimeout"] == 42


@pytest.mark.parametrize(
    ("code", "message", "answer"),
    [
        ("ReceiptHandleIsInvalid", "", LOST),
        ("InvalidParameterValue", "Message does not exist or is not available", LOST),
        ("InvalidParameterValue", "The receipt handle has expired", LOST),
        ("AWS.SimpleQueueService.MessageNotInflight", "", LOST),
        ("InvalidParameterValue", "Total VisibilityTimeout is beyond the limit [43200]", UNKNOWN),
        ("InternalError", "", UNKNOWN),
        ("RequestThrottled", "", UNKNOWN),
        ("SomethingNew", "", UNKNOWN),
    ],
)
def test_only_what_is_said_of_the_message_is_a_loss(
    bench: SqsBench, code: str, message: str, answer: Answer
) -> None:
    """One entry's failure is its own, and a loss only if SQS says that the message is gone."""
    bench.receive("bad")
    bench.receive("good")
    bench.api.fail["bad"] = {"Code": code, "Message": message}
    assert extend(bench, "bad", "good") == [answer, HELD]


def test_a_thousand_extensions_are_under_way_together(bench: SqsBench) -> None:
    """One hundred calls one after the other would take as long as a hundred round trips."""
    handles = [f"h{number}" for number in range(1000)]
    for handle in handles:
        bench.receive(handle)
    together = threading.Barrier(4, timeout=30)
    bench.api.meanwhile = lambda: bench.api.calls[1:] and together.wait()
    bench.api.fail["h777"] = {"Code": "ReceiptHandleIsInvalid"}
    answers = extend(bench, *handles[:970])  # the first call alone, then 96 in fours
    assert len(bench.api.calls) == 97
    assert [handles[place] for place, answer in enumerate(answers) if answer is LOST] == ["h777"]
    assert answers.count(HELD) == 969
    assert not [each for each in threading.enumerate() if each.name.startswith("celery-lease-sqs")]


def test_a_question_is_asked_where_no_thread_is_to_be_had(
    bench: SqsBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As at the interpreter's end: by the one that asks."""
    handles = [f"h{number}" for number in range(100)]
    for handle in handles:
        bench.receive(handle)

    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", start)
    assert extend(bench, *handles) == [HELD] * 100


@pytest.mark.parametrize("error", [throttled(), refused(), silent()])
def test_a_call_that_fails_is_no_answer(bench: SqsBench, error: Exception) -> None:
    """Throttled, unreachable or silent: neither a renewal nor a loss."""
    bench.receive()
    bench.api.error = error
    assert extend(bench, "h") == [UNKNOWN]
    assert bench.driver.complete(["h"]) == [UNKNOWN]


def test_a_silent_service_is_asked_once_for_all(bench: SqsBench) -> None:
    """A hundred leases must not wait for ten timeouts one after the other."""
    handles = [f"h{number}" for number in range(100)]
    for handle in handles:
        bench.receive(handle)
    bench.api.error = silent()
    assert extend(bench, *handles) == [UNKNOWN] * 100
    assert len(bench.api.calls) == 1


def test_a_call_waits_no_longer_than_what_is_left(bench: SqsBench) -> None:
    """The second call of a question has what the first has left over."""
    for number in range(20):
        bench.receive(f"h{number}")
    bench.api.meanwhile = lambda: bench.clock.advance(3.0)
    extend(bench, *(f"h{number}" for number in range(20)))
    assert bench.api.patience[-2:] == [5.0, 2.0]


@pytest.mark.parametrize("action", ["extend", "complete", "requeue"])
def test_nothing_is_sent_under_a_stale_handle(bench: SqsBench, action: str) -> None:
    """SQS would let it act on the next holder's message, or say nothing."""
    bench.receive(seconds=100.0)
    bench.clock.advance(600.0)
    answers = extend(bench, "h") if action == "extend" else getattr(bench.driver, action)(["h"])
    assert answers == [LOST]
    assert bench.api.calls == []


def test_an_unknown_handle_is_stale(bench: SqsBench) -> None:
    """What another process received is not this one's to touch."""
    assert bench.driver.requeue(["x"]) == [LOST]


def test_a_settled_handle_is_stale(bench: SqsBench) -> None:
    """A second acknowledgement, or one after handing back, is not sent."""
    bench.receive()
    assert bench.driver.requeue(["h"]) == [HELD]
    assert bench.driver.complete(["h"]) == [LOST]
    assert bench.api.sent("delete") == []


def test_a_shorter_timeout_counts_even_if_it_was_not_answered(bench: SqsBench) -> None:
    """Nobody knows whether SQS did it, so the handle is good for no longer than the shorter one."""
    bench.receive(seconds=600.0)
    bench.api.error = silent()
    extend(bench, "h", seconds=10.0)
    bench.api.error = None
    bench.clock.advance(11.0)
    assert bench.driver.complete(["h"]) == [LOST]


def test_a_requeue_that_was_not_answered_is_not_repeated(bench: SqsBench) -> None:
    """If SQS did it, the message may be somebody else's by now; if not, it expires."""
    bench.receive()
    bench.api.error = silent()
    assert bench.driver.requeue(["h"]) == [UNKNOWN]
    bench.api.error = None
    assert bench.driver.requeue(["h"]) == [LOST]


@pytest.mark.parametrize("error", [refused(), throttled()])
def test_a_requeue_that_was_not_done_is_repeated(bench: SqsBench, error: Exception) -> None:
    """Without a connection, and by a service that refused, nothing was done."""
    bench.receive()
    bench.api.error = error
    assert bench.driver.requeue(["h"]) == [UNKNOWN]
    bench.api.error = None
    assert bench.driver.requeue(["h"]) == [HELD]


def test_an_extension_granted_after_the_handle_went_stale_proves_nothing(bench: SqsBench) -> None:
    """SQS extends an expired handle gladly, also one that somebody else's has replaced."""
    bench.receive()
    bench.api.meanwhile = lambda: bench.clock.advance(600.0)
    assert extend(bench, "h") == [UNKNOWN]
    assert bench.driver.complete(["h"]) == [LOST]


def test_an_expired_lease_cannot_be_confirmed(bench: SqsBench) -> None:
    """SQS cannot tell an expired lease from a taken one, so it is not asked."""
    bench.receive()
    bench.clock.advance(600.0)
    assert extend(bench, "h", late=True) == [UNKNOWN]
    assert bench.api.calls == []


def test_a_first_lease_is_no_longer_than_the_queue_hides_the_message(bench: SqsBench) -> None:
    """It counts from when the poll was sent: nobody knows when SQS picked the message."""
    claim = bench.receive(seconds=3600.0, ago=20.0)
    assert claim is not None
    assert claim.seconds == 580.0
    assert claim.provisional


@pytest.mark.parametrize(
    ("hidden", "ago", "seconds", "enough_for"),
    [
        (8, 0.0, 300.0, 0.0),  # calls may be late
        (22, 0.0, 300.0, 4.0),
        (30, 8.0, 300.0, 4.0),  # the poll waited
        (300, 0.0, 300.0, 5.0),
        (301, 0.0, 300.0, 0.0),  # a killed worker's message would come back late
    ],
)
def test_a_message_that_the_queue_hides_for_long_enough_may_wait_a_moment(
    bench: SqsBench, hidden: int, ago: float, seconds: float, enough_for: float
) -> None:
    """Most messages are done by then, and need no extension."""
    bench.api.attributes["VisibilityTimeout"] = str(hidden)
    bench.driver.queues.refresh()
    claim = bench.receive(seconds=seconds, ago=ago)
    assert claim is not None
    assert claim.enough_for == enough_for


def test_a_message_that_may_be_visible_again_is_not_taken(bench: SqsBench) -> None:
    """It came so late that somebody else may have it."""
    assert bench.receive(ago=600.0) is None


def test_a_lease_ends_before_sqs_ends_it(bench: SqsBench) -> None:
    """Twelve hours from the receipt SQS hides a message no longer."""
    claim = bench.receive(ago=20.0)
    assert claim is not None
    assert claim.limit <= 43_200 - 20 - 1


def test_a_message_that_waits_longer_than_sqs_delays_any_is_held(bench: SqsBench) -> None:
    """An ETA is the worker's to wait for, as SQS has no delay beyond 15 minutes."""
    bench.receive(seconds=100.0)
    for _ in range(40):
        bench.clock.advance(45.0)
        assert extend(bench, "h") == [HELD]
    assert [entry["VisibilityTimeout"] for entry in bench.api.sent("change")] == [100] * 40
    assert bench.driver.complete(["h"]) == [HELD]


def test_a_redrive_policy_is_told_with_the_claim(bench: SqsBench) -> None:
    """SQS's own dead-letter queue decides where there is one, and policies may change."""
    claim = bench.receive("a")
    assert claim is not None
    assert claim.delivery_limit is None
    bench.api.attributes["RedrivePolicy"] = '{"deadLetterTargetArn": "arn", "maxReceiveCount": "3"}'
    bench.clock.advance(300.0)
    bench.driver.reap(limit=50)
    claim = bench.receive("b")
    assert claim is not None
    assert claim.delivery_limit == 3


def losses(bench: SqsBench, handle: str, receives: int) -> int:
    """Receive a message and return its losses."""
    claim = bench.receive(handle, receives=receives)
    assert claim is not None
    assert claim.deliveries == receives
    return claim.losses


def test_losses_are_those_that_were_seen_here(bench: SqsBench) -> None:
    """SQS counts receives and does not say how they ended: others' may have been orderly."""
    assert losses(bench, "a", 4) == 0
    bench.driver.requeue(["a"], orderly=True)
    assert losses(bench, "b", 5) == 0
    bench.driver.requeue(["b"], orderly=False)
    bench.driver.requeue(["b"], orderly=False)  # said twice
    assert losses(bench, "c", 7) == 1
    bench.clock.advance(601.0)
    bench.driver.reap(limit=50)
    bench.driver.requeue(["c"], orderly=False)  # its task was ended after it expired
    assert losses(bench, "d", 8) == 2
    assert losses(bench, "e", 1) == 0, "another message"


def test_a_message_that_is_back_before_its_loss_was_seen_counts_it(bench: SqsBench) -> None:
    """A busy worker's lease expires, and SQS serves the message, before it reads of the death.

    The task would kill one process more for each time that happens.
    """
    assert losses(bench, "a", 1) == 0
    bench.clock.advance(601.0)
    assert losses(bench, "b", 2) == 1
    bench.driver.requeue(["a"], orderly=False)  # only now the pool tells; counted before
    assert losses(bench, "c", 3) == 2
    bench.driver.requeue(["b", "c"], orderly=False)
    assert losses(bench, "d", 4) == 3


def test_an_orderly_end_that_sqs_was_not_told_of_is_no_loss(bench: SqsBench) -> None:
    """What was not answered before keeps SQS from hearing of it; the message expires meanwhile."""
    assert losses(bench, "a", 1) == 0
    bench.driver.ended(["a"])
    bench.clock.advance(601.0)
    assert losses(bench, "b", 2) == 0
    bench.driver.requeue(["a"], orderly=True)
    assert losses(bench, "c", 3) == 1, "b is lost, a is not"


@pytest.mark.parametrize("end", [LeaseConsumer.complete, LeaseConsumer.drop])
def test_what_a_consumer_has_ended_is_no_loss(
    bench: SqsBench, end: Callable[[LeaseConsumer, str], None]
) -> None:
    """SQS did not hear of it, and serves the message once more."""
    consumer = LeaseConsumer(bench.driver, 100.0, bench.clock)
    claim = bench.receive("a")
    assert claim is not None
    consumer.claimed(claim, None)
    bench.api.error = refused()
    end(consumer, claim.tag)
    bench.clock.advance(601.0)
    assert losses(bench, "b", 2) == 0


def test_a_dead_letter_is_there_before_its_message_is_deleted(bench: SqsBench) -> None:
    """If SQS answers only the first of the two, asking again does not send it twice."""
    bench.receive("a", receives=2)
    bench.api.error = silent()
    assert bench.driver.dead_letter("a", "q.dead") is UNKNOWN
    assert bench.api.letters == []
    bench.api.error, bench.api.fail["a"] = None, {"Code": "InternalError"}
    assert bench.driver.dead_letter("a", "q.dead") is UNKNOWN
    bench.api.fail.clear()
    assert bench.driver.dead_letter("a", "q.dead") is HELD
    ((url, letter),) = bench.api.letters
    assert url == "https://sqs/1/q-dead"
    assert letter["deliveries"] == 2
    assert [entry["ReceiptHandle"] for entry in bench.api.sent("delete")] == ["a", "a"]
    assert bench.driver.dead_letter("a", "q.dead") is LOST


def test_a_stale_handle_buries_nothing(bench: SqsBench) -> None:
    """The message may be somebody else's by now."""
    bench.receive("a")
    bench.clock.advance(601.0)
    assert bench.driver.dead_letter("a", "q.dead") is LOST
    assert bench.api.letters == []


def test_a_queue_that_may_not_be_asked_is_taken_for_a_usual_one(bench: SqsBench) -> None:
    """Without the right to read attributes the shortest usual timeout is assumed."""
    bench.api.error = ClientError({"Error": {"Code": "AccessDenied"}}, "GetQueueAttributes")
    assert bench.driver.learn(None, "other", URL + "3").visibility == 30


def test_a_rejected_message_waits_as_its_backoff_policy_says(bench: SqsBench) -> None:
    """Handing back at a shutdown knows no backoff, rejecting does."""
    for handle in ("a", "b"):
        bench.receive(handle, backoff=20)
    bench.driver.requeue(["a"], front=False)
    bench.driver.requeue(["b"], front=True)
    assert [entry["VisibilityTimeout"] for entry in bench.api.sent("change")] == [20, 0]


def test_messages_for_nobody_are_released(bench: SqsBench) -> None:
    """What a poll brings after its consumer is gone goes back at once, in tens."""
    bench.driver.release("q", URL, [f"h{number}" for number in range(11)])
    assert [entry["VisibilityTimeout"] for entry in bench.api.sent("change")] == [0] * 11
    assert len(bench.api.calls) == 2


def test_stale_handles_are_forgotten(bench: SqsBench) -> None:
    """A worker that runs for months keeps no book of what it once had."""
    bench.receive()
    bench.clock.advance(601.0)
    assert bench.driver.reap(limit=50) == []
    assert len(bench.driver.receipts) == 0
