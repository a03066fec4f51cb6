"""What the driver makes of PostgreSQL's answers and silences."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import sql

from celery_lease.brokers.pgmq import connections
from celery_lease.brokers.pgmq.connections import CONNECTIONS, Connections, NoAnswer
from celery_lease.brokers.pgmq.driver import BATCH, PgmqDriver
from celery_lease.brokers.pgmq.fence import Delivery, ReceivedMessage
from celery_lease.core.delivery import Answer, Renewal, Terms
from unit.fakes import FakeClock

if TYPE_CHECKING:
    from collections.abc import Callable

READ_AT = datetime(2026, 1, 1, tzinfo=UTC)


class Database:
    """Stands for all connections: answers with rows, or an error, as told."""

    def __init__(self) -> None:
        self.says: Callable[[list[Any]], list[tuple[Any, ...]]] = lambda _: []
        self.asked: list[list[Any]] = []

    def run(
        self, statement: Any, parameters: Any, *, timeout: float, then: Any = None
    ) -> list[tuple[Any, ...]]:
        del statement, timeout
        assert then is None, "no lease here needs a key"
        self.asked.append(parameters)
        return self.says(parameters)

    def fail(self, error: Exception) -> None:
        def fail(_: list[Any]) -> list[tuple[Any, ...]]:
            raise error

        self.says = fail


@pytest.fixture
def clock() -> FakeClock:
    """Time that tests move."""
    return FakeClock()


@pytest.fixture
def database() -> Database:
    """The database."""
    return Database()


@pytest.fixture
def driver(database: Database, clock: FakeClock) -> PgmqDriver:
    """A driver for it."""
    return PgmqDriver(database, clock)  # type: ignore[arg-type]


def delivery(msg_id: int, queue: str = "q", read_ct: int = 1) -> Delivery:
    """Return one delivery."""
    return Delivery(queue, msg_id, read_ct, READ_AT)


def received(**facts: Any) -> ReceivedMessage:
    """Return a message that was just read."""
    usual = {
        "delivery": delivery(1),
        "queue": "q",
        "terms": Terms(seconds=60),
        "hidden_until": 1e9,
    }
    return ReceivedMessage(**{**usual, **facts})


def test_each_row_answers_for_its_delivery(driver: PgmqDriver, database: Database) -> None:
    """In whichever order rows come: done is held, untouched is unknown, not there is lost."""
    database.says = lambda _: [
        (1, 1, 1, True),
        (0, 2, 1, False),
        (0, 1, 1, False),
        (0, 1, 1, True),
    ]
    each = [delivery(1), delivery(1, "other"), delivery(2), delivery(3)]
    answers = driver.complete([one.tag for one in each])
    assert answers == [Answer.HELD, Answer.HELD, Answer.UNKNOWN, Answer.LOST]
    assert len(database.asked) == 1


def test_many_leases_are_extended_by_several_statements(
    driver: PgmqDriver, database: Database
) -> None:
    """One for all takes longer than its time on a busy server, and then nothing is known."""
    renewals = [Renewal(delivery(number).tag, 60.0) for number in range(BATCH * 2 + 1)]

    def held(parameters: list[Any]) -> list[tuple[Any, ...]]:
        return [(0, number, 1, True) for number in parameters[0]]

    database.says = held
    assert driver.extend(renewals, timeout=5.0) == [Answer.HELD] * len(renewals)
    assert [len(parameters[0]) for parameters in database.asked] == [BATCH, BATCH, 1]
    database.fail(OSError("no route"))
    assert driver.extend(renewals, timeout=5.0) == [Answer.UNKNOWN] * len(renewals)
    assert len(database.asked) == 4


@pytest.mark.parametrize(
    "error",
    [
        psycopg.errors.QueryCanceled("statement timeout"),
        psycopg.errors.AdminShutdown("terminated"),
        psycopg.errors.ReadOnlySqlTransaction("standby"),
        psycopg.errors.DeadlockDetected("deadlock"),
        NoAnswer("busy"),
        OSError("no route"),
    ],
)
def test_an_error_is_no_answer(
    driver: PgmqDriver, database: Database, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    """Neither a renewal nor a loss, and logged once, as is its end."""
    database.fail(error)
    for _ in range(2):
        renewals = [Renewal(delivery(1).tag, 5.0), Renewal(delivery(1, "other").tag, 5.0)]
        assert driver.extend(renewals) == [Answer.UNKNOWN] * 2
    assert driver.dead_letter(delivery(1).tag, "q.dead") is Answer.UNKNOWN
    assert caplog.text.count("does not answer for leases") == 1
    caplog.set_level("INFO")
    database.says = lambda _: [(0, 1, 1, True)]
    assert driver.extend([Renewal(delivery(1).tag, 5.0)]) == [Answer.HELD]
    assert caplog.text.count("answers for leases again") == 1


def test_losses_are_earlier_deliveries_without_orderly_returns(
    driver: PgmqDriver, database: Database
) -> None:
    """Other headers, and none at all, count for nothing."""
    database.says = lambda _: [(0, 1, 5, True)]
    losses = []
    for headers in (None, {}, {"id": "x"}, {"celery_lease_returns": 3}):
        (claim,) = driver.claim([received(delivery=delivery(1, read_ct=5), headers=headers)])
        assert claim is not None
        assert claim.deliveries == 5
        losses.append(claim.losses)
    assert losses == [4, 4, 4, 1]


def test_a_message_read_again_before_its_claim_is_not_taken(
    driver: PgmqDriver, database: Database
) -> None:
    """It is somebody else's."""
    database.says = lambda _: []
    assert driver.claim([received()]) == [None]


def test_an_unanswered_claim_is_provisional_and_no_longer_than_the_reading_hides(
    driver: PgmqDriver, database: Database, clock: FakeClock
) -> None:
    """And with nothing left of that time, the message is not taken."""
    database.fail(NoAnswer("slow"))
    (claim,) = driver.claim([received(hidden_until=clock.now() + 20)])
    assert claim is not None
    assert (claim.provisional, claim.seconds) == (True, 20)
    assert driver.claim([received(hidden_until=clock.now())]) == [None]


class Server:
    """Gives its answers in turn to whichever connection asks."""

    def __init__(self) -> None:
        self.answers: list[Exception | list[Any]] = []
        self.connections: list[Connection] = []

    def connect(self, *_: Any, **__: Any) -> Connection:
        self.connections.append(Connection(self))
        return self.connections[-1]


class Connection:
    """One connection; an error breaks it."""

    description = True

    def __init__(self, server: Server) -> None:
        self.server = server
        self.broken = self.closed = False
        self.rows: list[Any] = []

    def execute(self, *_: Any) -> Connection:
        answer = self.server.answers.pop(0)
        if isinstance(answer, Exception):
            self.broken = True
            raise answer
        self.rows = answer
        return self

    def fetchall(self) -> list[Any]:
        return self.rows

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    """The server that all new connections are to."""
    server = Server()
    monkeypatch.setattr(connections.BoundedConnection, "connect", server.connect)
    return server


def ask(lines: Connections) -> list[Any]:
    """Run some statement."""
    return lines.run(sql.SQL("").format(), (), timeout=5.0)


def test_a_connection_that_was_cut_while_idle_is_replaced_at_once(
    server: Server, clock: FakeClock
) -> None:
    """One that was just made is not: it is the server that fails."""
    lines = Connections("", clock)
    server.answers = [[(1,)], psycopg.OperationalError("cut"), [(2,)]]
    assert [ask(lines), ask(lines)] == [[(1,)], [(2,)]]
    assert [each.closed for each in server.connections] == [True, False]
    lines.close()
    server.answers = [psycopg.OperationalError("down"), [(3,)]]
    with pytest.raises(psycopg.OperationalError, match="down"):
        ask(lines)
    assert server.answers == [[(3,)]]


def test_more_calls_than_connections_are_turned_away_in_time(
    server: Server, clock: FakeClock
) -> None:
    """Each of them waits for a turn, and no longer than it may."""
    lines = Connections("", clock)
    for _ in range(CONNECTIONS):
        lines._turns.acquire()
    with pytest.raises(NoAnswer, match="busy"):
        lines.run(sql.SQL("").format(), (), timeout=0.0)
    assert server.connections == []


def test_a_statement_ends_at_its_time_whatever_the_server_does(clock: FakeClock) -> None:
    """The protocol's steps are given up, also in the middle."""
    connection = connections.BoundedConnection.__new__(connections.BoundedConnection)
    connection.clock, connection.ends = clock, clock.now() + 1

    def protocol() -> Any:
        while True:
            yield 1

    steps = connection._bounded(protocol())
    assert [next(steps), steps.send(0)] == [1, 1]
    clock.advance(1)
    with pytest.raises(NoAnswer, match="in time"):
        steps.send(0)


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (psycopg.errors.ReadOnlySqlTransaction("standby"), True),
        (psycopg.errors.IdleInTransactionSessionTimeout("stopped"), True),
        (psycopg.errors.UndefinedTable("dropped"), False),
        (psycopg.OperationalError("no state"), False),
        (ValueError("25"), False),
    ],
)
def test_errors_of_a_transaction_that_was_ended_pass(error: Exception, passes: bool) -> None:
    """A worker connects again after them, and exits after others."""
    assert PgmqDriver.will_pass(error) is passes
