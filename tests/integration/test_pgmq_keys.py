"""Exclusive keys on pgmq: what the database makes of holders, lines and their rows.

What they have in common with those on Redis is in ``test_exclusive_keys``.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from psycopg import sql

from celery_lease.core.delivery import Answer, Renewal, Terms
from celery_lease.core.keys import Exclusive, OnBusy, Verdict
from harness.lease_desk import Bench
from harness.waiting import eventually
from harness.workers import WorkerOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from harness.brokers import RedisServer
    from harness.lease_desk import Desk
    from harness.ledger import Ledger
    from harness.postgres import Database, PgmqBench
    from harness.setup import Setup
    from harness.workers import WorkerFleet

TABLE = "pgmq.celery_lease_keys"


@pytest.fixture
def bench(database: Database) -> Iterator[PgmqBench]:
    """Consumers of that database."""
    bench = database.bench()
    yield bench
    bench.close()


@dataclass
class Consumer:
    """A consumer whose messages all need a key; each body is its message's task id."""

    desk: Desk
    key: str = "k"
    limit: int = 1
    on_busy: OnBusy = OnBusy.WAIT
    seconds: float = 60.0
    decides: bool = True
    parked: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.driver: Any = self.desk.driver
        self.desk.holder.terms = self._terms  # type: ignore[method-assign]
        self.desk.holder.parked = self._parked  # type: ignore[method-assign]

    def _terms(self, message: Any) -> Terms:
        exclusive = Exclusive(
            key=self.key, limit=self.limit, on_busy=self.on_busy, decides=self.decides
        )
        about = {"id": message.payload, "task": "t", "worker": "w"}
        return Terms(seconds=self.seconds, waits=True, about=about, exclusive=exclusive)

    def _parked(self, message: Any, queue: str, by: str) -> None:
        assert queue in ("q", "r")
        self.parked.append((message.payload, by))

    def tag(self) -> str:
        """Return the tag of the next message that is not parked."""
        (message,) = self.desk.receive()
        return str(message.claim.tag)

    def take(self, tag: str) -> Verdict:
        return Verdict(self.driver.take_key(tag).verdict)

    def park(self, count: int = 1) -> None:
        """Turn until so many more messages were parked on receipt."""
        count += len(self.parked)
        eventually(lambda: self.desk.turn(0.1) or len(self.parked) >= count, what="parked")

    def complete(self, tag: str) -> Answer:
        return Answer(self.driver.complete([tag])[0])


@pytest.fixture
def one(bench: PgmqBench) -> Consumer:
    """A consumer."""
    return Consumer(bench.desk())


@pytest.fixture
def two(bench: PgmqBench) -> Consumer:
    """Another one."""
    return Consumer(bench.desk())


def rows(database: Database, where: str = "true") -> list[Any]:
    """Return key, id and whether they wait, of the rows of the table."""
    columns = "key, id, place IS NOT NULL"
    return database.execute(f"SELECT {columns} FROM {TABLE} WHERE {where} ORDER BY place")  # noqa: S608


@pytest.mark.parametrize("limit", [1, 2])
def test_of_many_that_take_a_key_at_once_no_more_than_the_limit_get_it(
    bench: PgmqBench, database: Database, limit: int
) -> None:
    """Whatever comes between them; each runs once, and the line is empty at the end."""
    consumers = [Consumer(bench.desk(), limit=limit) for _ in range(4)]
    bench.publish(*[f"m{number}" for number in range(40)])
    lock, done, most = threading.Lock(), Counter[str](), 0
    holds: set[str] = set()
    ends = time.monotonic() + 60

    def work(consumer: Consumer) -> None:
        nonlocal most
        while sum(done.values()) < 40 and time.monotonic() < ends:
            consumer.desk.turn(0.1)
            while consumer.desk.received:
                message = consumer.desk.received.pop(0)
                if consumer.take(message.claim.tag) is not Verdict.HELD:
                    continue
                with lock:
                    holds.add(message.claim.tag)
                    most = max(most, len(holds))
                time.sleep(0.01)
                with lock:
                    holds.discard(message.claim.tag)
                    done[message.payload] += 1
                assert consumer.complete(message.claim.tag) is Answer.HELD

    threads = [threading.Thread(target=work, args=(each,)) for each in consumers]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert most == limit
    assert len(done) == 40
    assert set(done.values()) == {1}
    assert (database.counts("q"), rows(database)) == ((0, 0), [])


def test_the_end_of_a_lease_wakes_the_first_in_the_line(
    bench: PgmqBench, one: Consumer, two: Consumer
) -> None:
    """In the same transaction, however it ends; parking counts as no delivery."""
    bench.publish("a")
    tag = one.tag()
    assert one.take(tag) is Verdict.HELD
    bench.publish("b", "c")
    two.park(2)
    assert two.parked == [("b", "a"), ("c", "a")]
    assert bench.waiting() == 0
    assert one.driver.requeue([tag], orderly=True, front=True) == [Answer.HELD]
    assert bench.waiting() == 2, "what was requeued, and the first in the line"
    two.desk.turn(1)
    woken = {message.payload: message.claim for message in two.desk.receive(2)}
    assert (woken["b"].deliveries, woken["b"].losses) == (1, 0)
    assert woken["b"].parked_at == pytest.approx(time.time(), abs=30)
    assert (woken["a"].deliveries, woken["a"].losses, woken["a"].parked_at) == (2, 0, None)
    assert two.take(woken["b"].tag) is Verdict.HELD
    assert two.take(woken["a"].tag) is Verdict.PARKED
    (use,) = two.driver.keys_in_use()
    assert [user.task_id for user in use.holders] == ["b"]
    assert [user.task_id for user in use.parked] == ["a", "c"], "what came before, first"
    assert two.driver.dead_letter(woken["b"].tag, "q.dead") is Answer.HELD
    assert bench.waiting() == 1


def test_a_former_holder_cannot_come_back_once_its_key_was_taken(
    bench: PgmqBench, one: Consumer, database: Database
) -> None:
    """Before that its lease may be confirmed, and it holds the key again."""
    two = Consumer(bench.desk("r"))
    bench.publish("a")
    tag = one.tag()
    assert one.take(tag) is Verdict.HELD
    bench.publish("b", queue="r")
    two.park()

    def look() -> int:
        database.execute(f"UPDATE {TABLE} SET look_at = 'epoch'")  # noqa: S608
        one.driver.reap(limit=10)
        return bench.waiting("r")

    database.execute("UPDATE pgmq.q_q SET vt = now()")
    assert one.driver.extend([Renewal(tag, 60.0, late=True)]) == [Answer.HELD]
    assert look() == 0
    database.execute("UPDATE pgmq.q_q SET vt = now()")
    assert look() == 1
    assert two.take(two.tag()) is Verdict.HELD
    assert one.driver.extend([Renewal(tag, 60.0, late=True)]) == [Answer.LOST]
    assert one.complete(tag) is Answer.LOST
    assert bench.waiting() == 1, "its message is back"


def test_a_parked_message_has_no_holder(bench: PgmqBench, one: Consumer, two: Consumer) -> None:
    """Whoever had it can neither extend nor end anything, and it comes back by itself."""
    bench.publish("a", "b")
    two.decides = one.decides = False
    first, second = one.desk.receive(2)
    assert one.take(first.claim.tag) is Verdict.HELD
    tag = second.claim.tag
    assert one.take(tag) is Verdict.PARKED
    assert one.driver.extend([Renewal(tag, 60.0, late=True)]) == [Answer.LOST]
    assert (one.complete(tag), one.driver.begin([tag])) == (Answer.LOST, [Answer.LOST])
    hidden = "SELECT vt - now() < interval '600 s' FROM pgmq.q_q WHERE last_read_at IS NULL"
    assert bench.database.execute(hidden) == [(True,)]
    bench.database.execute("UPDATE pgmq.q_q SET vt = now() WHERE last_read_at IS NULL")
    two.decides = True
    two.park()
    assert two.parked == [("b", "a")]
    (use,) = one.driver.keys_in_use()
    assert [user.task_id for user in use.parked] == ["b"]


def test_a_purged_line_is_forgotten(bench: PgmqBench, one: Consumer, database: Database) -> None:
    """``celery purge`` empties a queue, with what is held and parked in it."""
    bench.publish("a", "b", "c")
    tag = one.tag()
    assert one.take(tag) is Verdict.HELD
    eventually(lambda: one.desk.turn(0.1) or one.desk.received or len(one.parked) == 2)
    for message in one.desk.received:
        assert one.take(message.claim.tag) is Verdict.PARKED
    assert one.driver.parked() == {"q": 2}
    database.execute("SELECT pgmq.purge_queue('q')")
    assert one.driver.keys_in_use() == []
    assert one.driver.first_parked(10) == []
    database.execute(f"UPDATE {TABLE} SET look_at = 'epoch'")  # noqa: S608
    one.driver.reap(limit=10)
    assert rows(database) == []


def test_keys_do_not_hold_up_the_end_of_a_lease(
    bench: PgmqBench, one: Consumer, database: Database
) -> None:
    """Not even if the table is gone, or of another shape; the next one makes it again."""
    bench.publish("a", "b", "c")
    for change, back in (
        (f"ALTER TABLE {TABLE} RENAME place TO gone", f"ALTER TABLE {TABLE} RENAME gone TO place"),
        (f"DROP TABLE {TABLE}", "SELECT 1"),
    ):
        tag = one.tag()
        assert one.take(tag) is Verdict.HELD
        database.execute(change)
        assert one.complete(tag) is Answer.HELD
        database.execute(back)
    tag = one.tag()
    assert one.take(tag) is Verdict.HELD
    assert rows(database) == [("k", "c", False)]
    assert one.complete(tag) is Answer.HELD
    assert rows(database) == []


def test_apps_with_prefixes_share_a_database(database: Database) -> None:
    """As their queues do: one key is two."""
    benches = [database.bench(queue_name_prefix=prefix) for prefix in ("one_", "two_")]
    consumers = []
    for bench in benches:
        bench.publish("a")
        consumers.append(Consumer(bench.desk()))
        assert consumers[-1].take(consumers[-1].tag()) is Verdict.HELD
    (use,) = consumers[0].driver.keys_in_use()
    assert [user.queue for user in use.holders] == ["q"]
    for bench in benches:
        bench.close()


def test_a_read_is_claimed_and_its_keys_are_looked_at_in_one_call(
    bench: PgmqBench, one: Consumer, two: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task whose key is free takes three: the read's, the take of its key, and its end."""
    for each in (one, two):
        each.driver.keys.make_ready()
        each.desk.turn(0.1)  # asks the server for its limits
    calls = []
    for each in (one, two):
        run = each.driver._connections.run
        monkeypatch.setattr(
            each.driver._connections, "run", lambda *a, r=run, **k: calls.append(a) or r(*a, **k)
        )
    bench.publish("a")
    tag = one.tag()
    assert (one.take(tag), len(calls)) == (Verdict.HELD, 2)
    bench.publish("b", "c")
    two.park(2)
    assert len(calls) <= 4, "as many as there were reads"
    assert one.complete(tag) is Answer.HELD


def test_a_message_is_delivered_though_nothing_is_known_of_its_key(
    bench: PgmqBench, one: Consumer, database: Database
) -> None:
    """Somebody holds the lock of the key for too long: its task asks when it is about to start."""
    one.driver.keys.make_ready()
    with psycopg.connect(database.dsn) as other:
        other.execute(f"SELECT pg_advisory_xact_lock(hashtext('{TABLE}'), hashtext('k'))")
        bench.publish("a")
        (message,) = one.desk.receive(within=30)
        assert message.claim.provisional
        assert one.take(message.claim.tag) is Verdict.UNKNOWN
    assert one.take(message.claim.tag) is Verdict.HELD
    assert one.complete(message.claim.tag) is Answer.HELD


@pytest.fixture
def theirs(database: Database, valkey: RedisServer) -> Setup:
    """Of a user who may make tables, but not use the one of keys, which is another's."""
    role = f"poor_{database.name}"
    database.execute(f"CREATE ROLE {role} LOGIN")
    database.execute(f"GRANT USAGE, CREATE ON SCHEMA pgmq TO {role}")
    for what in ("TABLES", "SEQUENCES"):
        database.execute(f"GRANT ALL ON ALL {what} IN SCHEMA pgmq TO {role}")
    database.execute(f"CREATE TABLE {TABLE} (key text)")
    database.execute(f"REVOKE ALL ON {TABLE} FROM {role}")
    setup = replace(database.setup(pool_size=1), backend=valkey.fresh_url())
    return replace(setup, broker=setup.broker.replace("postgres@", f"{role}@"))


def test_a_user_who_may_not_use_the_table_is_refused_at_the_start(
    database: Database, theirs: Setup, fleet: WorkerFleet
) -> None:
    """With the statements, after which the worker starts."""
    worker = fleet.launch(theirs, WorkerOptions(module="harness.app_keys"))
    eventually(lambda: worker.returncode is not None, 60, what="its end")
    (line,) = [each for each in worker.log.splitlines() if "not started" in each]
    assert f"may not create or use {TABLE}" in line
    database.execute(f"DROP TABLE {TABLE}")
    database.execute(line.partition("Run as a user who may: ")[2].partition("\x1b")[0])
    fleet.start(theirs, WorkerOptions(module="harness.app_keys"))


def test_a_call_whose_key_cannot_be_kept_fails(
    theirs: Setup, fleet: WorkerFleet, ledger: Ledger
) -> None:
    """It does not run without it; calls without a key do."""
    fleet.start(theirs, WorkerOptions(module="harness.app_leased"))
    send = theirs.app().send_task
    failed = send("any.work", [0.1], headers={"lease_key": "k"}, ignore_result=False)
    with pytest.raises(PermissionError, match=f"may not create or use {TABLE}"):
        failed.get(timeout=30)
    ledger.wait("end", send("any.work", [0.1]).id)
    assert not ledger.count("start", failed.id)


#: As the first version with keys on pgmq made the table.
OLD = (
    f"CREATE TABLE {TABLE} (queue text, msg_id bigint, prefix text NOT NULL, key text NOT NULL, "
    "key_limit int NOT NULL, place bigint, since timestamptz NOT NULL, look_at timestamptz, "
    "expires float8, read_ct int, read_at timestamptz, name text, task text, id text, worker text, "
    "deliveries int, losses int, PRIMARY KEY (queue, msg_id)); "
    f"CREATE INDEX celery_lease_keys_line ON {TABLE} (prefix, key, place)"
)


def indexes(database: Database) -> set[str]:
    """Return the names of the table's indexes that can be used."""
    names = "SELECT indexrelid::regclass::text FROM pg_index WHERE indisvalid AND indrelid"
    return {name for (name,) in database.execute(f"{names} = '{TABLE}'::regclass")}


def test_the_table_of_an_older_version_gets_the_index_that_it_lacks(
    bench: PgmqBench, one: Consumer, two: Consumer, database: Database
) -> None:
    """At the start of a worker; if somebody uses the table then, of the next one."""
    database.execute(OLD)
    with psycopg.connect(database.dsn) as used:
        used.execute(f"UPDATE {TABLE} SET since = now()")  # noqa: S608
        one.driver.keys.make_ready()
        bench.publish("a")
        assert one.take(one.tag()) is Verdict.HELD, "no lock is left"
    assert "pgmq.celery_lease_keys_look" not in indexes(database)
    two.driver.keys.make_ready()
    assert "pgmq.celery_lease_keys_look" in indexes(database)
    assert rows(database) == [("k", "a", False)]


def test_a_user_who_may_not_make_the_index_does_without(database: Database) -> None:
    """``test_doctor`` shows that the doctor has the statement for the table's owner."""
    role = f"uses_{database.name}"
    database.execute(f"{OLD}; CREATE ROLE {role} LOGIN; GRANT ALL ON {TABLE} TO {role}")
    for what in ("SCHEMA", "ALL TABLES IN SCHEMA", "ALL SEQUENCES IN SCHEMA"):
        database.execute(f"GRANT ALL ON {what} pgmq TO {role}")
    broker = database.setup().broker.replace("postgres@", f"{role}@")
    with closing(Bench(broker, database.options())) as theirs:
        theirs.publish("a")
        consumer = Consumer(theirs.desk())
        assert consumer.take(consumer.tag()) is Verdict.HELD
    assert "pgmq.celery_lease_keys_look" not in indexes(database)


def park_many(database: Database, count: int, keys: int) -> None:
    """Let messages wait, each for one of so many keys, ``k`` or ``k1``, ``k2`` and so on."""
    database.execute(
        f"""
        WITH sent AS (
            INSERT INTO pgmq.q_q (vt, message)
            SELECT now() + interval '500 s', '{{}}' FROM generate_series(1, %s) RETURNING msg_id
        ) INSERT INTO {TABLE} (queue, msg_id, prefix, key, key_limit, place, since, look_at, id)
        SELECT 'q', msg_id, '', coalesce('k' || nullif(msg_id %% %s, 0), 'k'), 1,
            10000000000000000 + msg_id, now(), now() + interval '1 h', msg_id FROM sent""",  # noqa: S608
        count,
        keys,
    )


def rows_read(database: Database, driver: Any, act: Callable[[], object]) -> int:
    """Return how many rows of the queue and of the table of keys the *driver* reads for an act."""
    statement = (
        "SELECT sum(seq_tup_read + idx_tup_fetch)::int FROM pg_stat_user_tables "
        "WHERE relname IN ('q_q', 'celery_lease_keys')"
    )
    ours = "SELECT FROM pg_stat_activity WHERE datname = %s AND application_name = 'celery-lease'"

    def read() -> int:
        driver.close()  # the server counts at the end of a connection, at the latest
        eventually(lambda: not database.execute(ours, database.name), what="their ends")
        return int(database.execute(statement)[0][0])

    before = read()
    act()
    return read() - before


@pytest.mark.parametrize("keys", [1, 5000])
def test_no_statement_reads_more_for_more_parked_messages_or_keys(
    bench: PgmqBench, one: Consumer, database: Database, keys: int
) -> None:
    """By rows: a look reads those that are due, and an end the first in its key's line."""
    bench.publish("a", "b")
    one.decides = False
    first, second = one.desk.receive(2)
    assert one.take(first.claim.tag) is Verdict.HELD
    driver = one.driver
    park_many(database, 5000, keys)
    database.execute(f"ANALYZE {TABLE}, pgmq.q_q")  # as autovacuum does a minute later

    def look(due: int) -> int:
        newest = f"SELECT msg_id FROM {TABLE} ORDER BY place DESC NULLS LAST LIMIT {due}"  # noqa: S608
        update = f"UPDATE {TABLE} SET look_at = now() WHERE msg_id IN ({newest})"  # noqa: S608
        driver._run(sql.SQL(update))
        return rows_read(database, driver, lambda: driver.reap(limit=10))

    assert look(0) == 0
    assert look(3) < 100
    assert look(1000) < 30_000
    on_busy, one.on_busy = one.on_busy, OnBusy.REPLACE
    assert rows_read(database, driver, lambda: one.take(second.claim.tag)) < 100
    one.on_busy = on_busy
    assert rows_read(database, driver, lambda: one.complete(first.claim.tag)) < 100


class Mixed(Consumer):
    """A consumer of messages of two keys: of the one two tasks may start at once."""

    def _terms(self, message: Any) -> Terms:
        self.key, self.limit = KEYS[int(message.payload[1:]) % 2]
        return super()._terms(message)


KEYS = [("one", 1), ("two", 2)]


class KeyMachine(RuleBasedStateMachine):
    """Two workers take turns at messages of two keys, in any order, with former leases, too."""

    bench: PgmqBench

    def __init__(self) -> None:
        super().__init__()
        self.query("SELECT pgmq.create('q'), pgmq.purge_queue('q')")
        self.workers = [Mixed(self.bench.desk()) for _ in range(2)]
        self.workers[0].driver.keys.make_ready()
        self.sent = 0
        self.leases: dict[str, tuple[Mixed, str]] = {}  # also former ones
        self.started: set[str] = set()
        self.done: list[str] = []

    def query(self, statement: str) -> list[Any]:
        return self.bench.database.execute(statement)

    def pick(self, which: int) -> tuple[str, Mixed, str]:
        """Return one of the last leases."""
        tag = list(self.leases)[-1 - which % len(self.leases)]
        return tag, *self.leases[tag]

    def started_now(self) -> Counter[int]:
        """Return how many started tasks of each key have a valid lease, by the queue's rows."""
        valid = self.query(
            "SELECT msg_id || '-' || read_ct || '-' || (extract(epoch FROM last_read_at) * 1e6)"
            "::bigint || '-q' FROM pgmq.q_q WHERE vt > clock_timestamp() "
            "AND last_read_at IS NOT NULL"
        )
        held = self.started & {tag for (tag,) in valid}
        return Counter(int(self.leases[tag][1][1:]) % 2 for tag in held)

    @precondition(lambda self: self.sent - len(self.done) < 6)
    @rule(count=st.integers(1, 3))
    def publish(self, count: int) -> None:
        self.bench.publish(*[f"m{self.sent + number}" for number in range(count)])
        self.sent += count

    @rule(who=st.integers(0, 1), decides=st.booleans(), starts=st.booleans())
    def receive(self, who: int, *, decides: bool, starts: bool) -> None:
        worker = self.workers[who]
        worker.decides = decides
        worker.desk.turn(0.02)
        for message in worker.desk.received:
            self.leases[message.claim.tag] = worker, message.payload
        received = len(worker.desk.received)
        worker.desk.received.clear()
        for which in range(received if starts else 0):
            self.start(which=which)

    @precondition(lambda self: self.leases)
    @rule(which=st.integers(0, 5))
    def start(self, which: int) -> None:
        tag, worker, _ = self.pick(which)
        if worker.take(tag) is Verdict.HELD:
            self.started.add(tag)

    @precondition(lambda self: self.leases)
    @rule(which=st.integers(0, 5))
    def complete(self, which: int) -> None:
        tag, worker, message = self.pick(which)
        if worker.complete(tag) is Answer.HELD:
            self.done.append(message)

    @precondition(lambda self: self.leases)
    @rule(which=st.integers(0, 5), orderly=st.booleans())
    def requeue(self, which: int, *, orderly: bool) -> None:
        tag, worker, _ = self.pick(which)
        worker.driver.requeue([tag], orderly=orderly, front=True)

    @precondition(lambda self: self.leases)
    @rule(which=st.integers(0, 5), late=st.booleans())
    def extend(self, which: int, *, late: bool) -> None:
        tag, worker, _ = self.pick(which)
        worker.driver.extend([Renewal(tag, 60.0, late=late)])

    @rule()
    def all_leases_expire(self) -> None:
        self.query("UPDATE pgmq.q_q SET vt = now() WHERE last_read_at IS NOT NULL")

    @rule(who=st.integers(0, 1))
    def reap(self, who: int) -> None:
        self.workers[who].driver.reap(limit=10)

    @invariant()
    def no_more_tasks_have_started_than_may(self) -> None:
        """I9."""
        for number, count in self.started_now().items():
            assert count <= KEYS[number][1]

    def teardown(self) -> None:
        """Run what is left, after all leases have expired and a reaper has looked: each once."""
        self.all_leases_expire()
        self.query(f"UPDATE {TABLE} SET look_at = 'epoch'")  # noqa: S608
        worker = self.workers[0]
        worker.driver.reap(limit=10)

        def work() -> bool:
            worker.desk.turn(0.02)
            for message in worker.desk.received:
                tag = message.claim.tag
                if worker.take(tag) is Verdict.HELD and worker.complete(tag) is Answer.HELD:
                    self.done.append(message.payload)
            worker.desk.received.clear()
            return len(self.done) >= self.sent

        eventually(work, what="end of all messages")
        assert sorted(self.done) == sorted(f"m{number}" for number in range(self.sent))
        assert rows(self.bench.database) == []
        for each in self.workers:
            each.desk.close()


def test_i9_holds_whatever_two_workers_do_in_turn(bench: PgmqBench) -> None:
    """Also after leases that expired, and for former holders; at the end nothing is stuck."""
    machine = type("Machine", (KeyMachine,), {"bench": bench})
    checks = list(HealthCheck)
    how = settings(
        max_examples=12, stateful_step_count=25, deadline=None, suppress_health_check=checks
    )
    run_state_machine_as_test(machine, settings=how)  # type: ignore[no-untyped-call]
