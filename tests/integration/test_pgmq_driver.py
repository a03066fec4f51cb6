"""What the database itself makes of leases: fences, locks, and one statement for all."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import sql

from celery_lease.brokers import identity
from celery_lease.brokers.pgmq.connections import PREPARED_AFTER
from celery_lease.brokers.pgmq.fence import Delivery
from celery_lease.brokers.pgmq.statements import Act, parameters, statement
from celery_lease.core.delivery import Answer, Renewal
from harness.lease_desk import bodies
from harness.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.lease_desk import Desk
    from harness.postgres import Database, PgmqBench

#: Seconds; an answer that takes no longer did not wait for anybody.
AT_ONCE = 2.0


@pytest.fixture
def bench(database: Database) -> Iterator[PgmqBench]:
    """Consumers of that database."""
    bench = database.bench()
    yield bench
    bench.close()


@pytest.fixture
def desk(bench: PgmqBench) -> Desk:
    """One consumer."""
    return bench.desk(seconds=60)


def extend(desk: Desk, messages: list[Any], timeout: float = 5.0) -> list[Answer]:
    """Ask for a minute for each message, all at once."""
    renewals = [Renewal(message.claim.tag, 60.0) for message in messages]
    answers: list[Answer] = desk.driver.extend(renewals, timeout=timeout)
    return answers


def test_a_thousand_leases_are_extended_by_one_statement(
    bench: PgmqBench, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of two queues among them."""
    both = bench.desk("q", "other", seconds=60)
    bench.publish(*range(400))
    bench.publish(*range(600), queue="other")
    messages = both.receive(1000, within=60)
    statements = []
    run = desk.driver._connections.run
    monkeypatch.setattr(
        desk.driver._connections, "run", lambda *a, **k: statements.append(a) or run(*a, **k)
    )
    began = time.perf_counter()
    answers = extend(desk, messages)
    print(f"1,000 leases extended in {(time.perf_counter() - began) * 1000:.1f} ms")  # noqa: T201
    assert answers == [Answer.HELD] * 1000
    assert len(statements) == 1


def test_rows_are_looked_up_by_their_key_however_many_wait(
    database: Database, bench: PgmqBench
) -> None:
    """A worker with a thousand leases does not read the backlog of its queue each time."""
    bench.publish("a")
    database.execute(
        "INSERT INTO pgmq.q_q (vt, message) SELECT now(), '{}' FROM generate_series(1, 20000)"
    )
    read_at = datetime.now(UTC)
    held = [Delivery("q", number, 1, read_at) for number in range(1, 1001)]
    with psycopg.connect(database.dsn) as connection:
        plan = connection.execute(
            sql.SQL("EXPLAIN ") + statement(Act.EXTEND, ("q",)),
            parameters(held, [60.0] * 1000, [False] * 1000),
        ).fetchall()
    assert "q_q_pkey" in str(plan)
    assert "Seq Scan" not in str(plan)


def test_two_workers_that_read_at_once_get_different_messages_without_waiting(
    database: Database, bench: PgmqBench, desk: Desk
) -> None:
    """Pgmq reads ``FOR UPDATE SKIP LOCKED``: what another transaction is taking is passed over."""
    bench.publish("first", "second")
    with psycopg.connect(database.dsn) as slow:
        taken = slow.execute("SELECT msg_id FROM pgmq.read('q', 60, 1)").fetchall()
        began = time.monotonic()
        assert bodies(desk.receive()) == ["second"]
        assert time.monotonic() - began < AT_ONCE
        slow.rollback()
    assert taken == [(1,)]
    assert bodies(desk.receive()) == ["first"], "it was not taken after all"


def test_a_row_that_somebody_locks_holds_up_no_other_lease(
    database: Database, bench: PgmqBench, desk: Desk
) -> None:
    """It is unanswered, neither held nor lost, and asked again."""
    bench.publish("a", "b", "c")
    messages = desk.receive(3)
    tags = [message.claim.tag for message in messages]
    with psycopg.connect(database.dsn) as somebody:
        somebody.execute("SELECT 1 FROM pgmq.q_q WHERE msg_id = 2 FOR UPDATE")
        began = time.monotonic()
        assert extend(desk, messages) == [Answer.HELD, Answer.UNKNOWN, Answer.HELD]
        assert desk.driver.complete(tags[:2]) == [Answer.HELD, Answer.UNKNOWN]
        assert desk.driver.requeue(tags[1:], orderly=True) == [Answer.UNKNOWN, Answer.HELD]
        assert time.monotonic() - began < AT_ONCE
        somebody.rollback()
    assert extend(desk, messages) == [Answer.LOST, Answer.HELD, Answer.LOST]


def test_losses_are_deliveries_without_the_orderly_returns(bench: PgmqBench, desk: Desk) -> None:
    """The count is kept with the message, whoever hands it back, and survives a loss."""
    bench.publish("a")
    for orderly in (True, False, True):
        (message,) = desk.receive()
        desk.driver.requeue([message.claim.tag], orderly=orderly)
    loser = bench.desk(seconds=0.2)
    desk.stop()
    loser.receive()
    loser.stop()
    (message,) = bench.desk(seconds=60).receive()
    assert (message.claim.deliveries, message.claim.losses) == (5, 2)


@pytest.fixture
def extended(bench: PgmqBench, desk: Desk) -> Any:
    """A message whose lease was extended often enough for the statement to be prepared."""
    bench.publish("a")
    (message,) = desk.receive()
    extend_often(desk, message)
    return message


def extend_often(desk: Desk, message: Any) -> None:
    for _ in range(PREPARED_AFTER + 2):
        assert extend(desk, [message]) == [Answer.HELD]


def prepared(desk: Desk) -> list[str]:
    """Return the names of the statements that are prepared on the driver's one connection."""
    (connection,) = desk.driver._connections._idle
    return [name for (name,) in connection.execute("SELECT name FROM pg_prepared_statements")]


@pytest.mark.usefixtures("extended")
def test_statements_are_prepared_under_names_that_no_other_connection_has(desk: Desk) -> None:
    """Behind a pooler another program's statement of that name would be run."""
    assert prepared(desk)
    assert not [name for name in prepared(desk) if len(name) < len("_pg3_") + 10]


def test_behind_a_pooler_without_prepared_statements_nothing_is_prepared_any_more(
    desk: Desk, extended: Any
) -> None:
    """Its session is another one each time, here one that has forgotten all statements."""
    (connection,) = desk.driver._connections._idle
    connection.execute("DO $$ BEGIN EXECUTE 'DEALLOCATE ALL'; END $$")
    extend_often(desk, extended)
    assert not prepared(desk)


def test_what_was_handed_back_cannot_be_hidden_by_a_late_extension(
    bench: PgmqBench, desk: Desk
) -> None:
    """Not by any call of its former holder, though nobody has taken the message yet."""
    bench.publish("a")
    (message,) = desk.receive()
    desk.stop()
    message.requeue()
    assert desk.extend(message) is Answer.LOST
    assert desk.extend(message, late=True) is Answer.LOST
    assert desk.driver.complete([message.claim.tag]) == [Answer.LOST]
    assert bench.waiting() == 1


def test_a_count_given_twice_is_not_the_same_delivery(
    database: Database, bench: PgmqBench, desk: Desk
) -> None:
    """A standby that takes over may not know of the last deliveries, and counts them again."""
    bench.publish("a")
    (message,) = desk.receive()
    desk.stop()
    database.execute("UPDATE pgmq.q_q SET read_ct = 0, vt = now()")
    (again,) = bench.desk(seconds=60).receive()
    assert again.claim.deliveries == message.claim.deliveries
    assert desk.extend(message) is Answer.LOST
    assert desk.driver.complete([message.claim.tag]) == [Answer.LOST]
    assert desk.extend(again) is Answer.HELD


def test_a_dropped_queue_costs_no_other_lease(
    database: Database, bench: PgmqBench, desk: Desk
) -> None:
    """Its own leases are lost, and the others are extended all the same."""
    both = bench.desk("q", "other", seconds=60)
    bench.publish("stays")
    bench.publish("goes", queue="other")
    messages = sorted(both.receive(2), key=lambda message: str(message.payload), reverse=True)
    both.stop()
    database.execute("SELECT pgmq.drop_queue('other')")
    assert extend(desk, messages) == [Answer.HELD, Answer.LOST]


def test_messages_without_terms_are_kombus(
    database: Database, bench: PgmqBench, desk: Desk
) -> None:
    """They are hidden for kombu's time, acknowledged and returned as ever."""
    desk.holder.leases = lambda message: message.payload == "leased"
    bench.publish("plain", "leased", "returned")
    plain, leased, returned = desk.receive(3)
    ((hidden,),) = database.execute("SELECT max(vt) > now() + '9 min' FROM pgmq.q_q")
    assert hidden
    assert [claim.tag for claim in desk.holder.claims] == [leased.delivery_tag]
    plain.ack()
    desk.stop()
    returned.requeue()
    assert database.counts("q") == (1, 1)
    assert desk.extend(leased) is Answer.HELD


def test_a_statement_timeout_is_no_answer(database: Database, bench: PgmqBench, desk: Desk) -> None:
    """Nor is a table that somebody locks; with the lock gone, the lease is still held."""
    bench.publish("a")
    messages = desk.receive()
    desk.stop()
    database.execute(f"ALTER DATABASE {database.name} SET statement_timeout = '300ms'")
    desk.driver.close()  # new connections have the timeout
    with psycopg.connect(database.dsn) as somebody:
        somebody.execute("LOCK TABLE pgmq.q_q")
        assert extend(desk, messages) == [Answer.UNKNOWN]
        somebody.rollback()
    assert extend(desk, messages) == [Answer.HELD]


def test_calls_beyond_the_drivers_own_connections_end_in_time(
    database: Database, bench: PgmqBench, desk: Desk
) -> None:
    """With all of them stuck, further ones are unanswered, and all recover."""
    bench.publish("a")
    messages = desk.receive()
    desk.stop()
    with psycopg.connect(database.dsn) as somebody, ThreadPoolExecutor(8) as threads:
        somebody.execute("LOCK TABLE pgmq.q_q")
        began = time.monotonic()
        calls = [threads.submit(extend, desk, messages, 1.0) for _ in range(8)]
        assert [call.result() for call in calls] == [[Answer.UNKNOWN]] * 8
        assert time.monotonic() - began < 8
        somebody.rollback()
    assert extend(desk, messages) == [Answer.HELD]


def test_a_claim_that_is_not_answered_lasts_as_long_as_the_reading_hides(
    database: Database, bench: PgmqBench
) -> None:
    """The message is delivered all the same; the keeper sets its lease when it can."""
    desk = bench.desk(seconds=60, options={"visibility_timeout": 20})
    bench.publish("a")
    database.execute(f"ALTER DATABASE {database.name} SET default_transaction_read_only = on")
    (message,) = desk.receive()  # kombu's connection is an older one
    assert message.claim.provisional
    assert 0 < message.claim.seconds <= 20
    database.server.execute(f"ALTER DATABASE {database.name} RESET default_transaction_read_only")
    eventually(lambda: desk.extend(message) is Answer.HELD)


def test_a_dead_letter_is_a_message_that_can_be_sent_back(
    database: Database, bench: PgmqBench, desk: Desk
) -> None:
    """It is moved once, whoever asks again is told so, and comes back with nothing against it."""
    bench.publish("a", headers={"id": "1", "task": "t"})
    desk.receive()[0].claim  # noqa: B018  (a loss)
    database.execute("UPDATE pgmq.q_q SET vt = now()")
    (message,) = desk.receive()
    assert message.claim.losses == 1
    tag = message.claim.tag
    assert [desk.driver.dead_letter(tag, "q.dead") for _ in range(2)] == [Answer.HELD] * 2
    assert desk.extend(message) is Answer.LOST
    assert (database.counts("q"), database.counts("q_dead")) == ((0, 0), (1, 0))
    letters = desk.driver.dead_letters()
    assert letters.queues() == ["q_dead"]
    (letter,) = letters.letters("q.dead")
    assert (letter.task_id, letter.task, letter.origin, letter.losses) == ("1", "t", "q", 1)
    assert letter.body == "a"
    assert [letters.retry(letter), letters.retry(letter)] == [True, False]
    assert letters.queues() == []
    (again,) = desk.receive()
    assert (again.payload, again.claim.deliveries, again.claim.losses) == ("a", 1, 0)
    desk.driver.dead_letter(again.claim.tag, "q.dead")
    (letter,) = letters.letters("q_dead")
    assert [letters.purge(letter), letters.purge(letter)] == [True, False]


def test_the_next_claim_notes_what_is_known_of_a_loss_that_its_worker_did_not_note(
    database: Database, bench: PgmqBench, desk: Desk
) -> None:
    """Of a worker that was killed, above all; not of a message that only waited or went back."""
    desks = [desk, bench.desk(seconds=60)]
    for name, each in zip(("one@h:1:aa", "two@h:2:bb"), desks, strict=True):
        each.holder.waits, each.holder.about = True, {"worker": name}
    bench.publish("a")

    def deliver(number: int, *, begins: bool = True) -> Any:
        (message,) = desks[number].receive()
        if begins:
            assert desk.driver.begin([message.claim.tag]) == [Answer.HELD]
        return message

    def expire() -> None:
        database.execute("UPDATE pgmq.q_q SET vt = now()")

    first = deliver(0)
    desks[0].stop()
    expire()
    second = deliver(1, begins=False)
    (loss,) = desk.driver.records().losses(second.claim.tag)
    facts = [loss[name] for name in ("reason", "worker", "deliveries", "token")]
    assert facts == ["expired", "one@h:1:aa", 1, first.claim.token]
    assert loss["since"] <= loss["ended"]
    expire()
    third = deliver(1)
    desk.driver.requeue([third.claim.tag])
    fourth = deliver(1)
    why = {"cause": "SIGKILL"}
    assert desk.driver.requeue([fourth.claim.tag], orderly=False, why=why) == [Answer.HELD]
    fifth = deliver(1)
    assert fifth.claim.losses == 2
    desk.driver.dead_letter(fifth.claim.tag, "q.dead")
    (letter,) = desk.driver.dead_letters().letters("q.dead")
    assert letter.history[0] == loss
    assert [each.get("cause") for each in letter.history] == [identity.UNKNOWN, "SIGKILL"]
    ((headers,),) = database.execute("SELECT headers FROM pgmq.q_q_dead")
    assert list(headers) == ["celery_lease_dead"]


def test_a_former_holder_buries_nothing(database: Database, bench: PgmqBench, desk: Desk) -> None:
    """The message is with its next holder, and stays there."""
    bench.publish("a")
    (message,) = desk.receive()
    database.execute("UPDATE pgmq.q_q SET vt = now()")
    (again,) = desk.receive()
    assert desk.driver.dead_letter(message.claim.tag, "q.dead") is Answer.LOST
    assert desk.extend(again) is Answer.HELD
