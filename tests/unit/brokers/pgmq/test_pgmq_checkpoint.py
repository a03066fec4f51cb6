"""Checkpoints on pgmq: what a silence, a refusal and a fork make of a call."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from celery_lease.brokers.pgmq import checkpoint
from celery_lease.brokers.pgmq.checkpoint import NoCheckpointTable, PgmqCheckpoints

if TYPE_CHECKING:
    from collections.abc import Iterator


class Database:
    """Stands for the connections of one process: each call gets the next answer or error."""

    made: list[Database]
    answers: Iterator[Any]

    def __init__(self, *_: object) -> None:
        self.asked: list[str] = []
        self.made.append(self)

    def run(self, statement: Any, *_: object, **__: object) -> Any:
        self.asked.append(statement.as_string(None).split()[0])
        answer = next(self.answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        """Nothing is open."""


@pytest.fixture(autouse=True)
def made(monkeypatch: pytest.MonkeyPatch) -> list[Database]:
    """The connections that stores make, of each process."""
    monkeypatch.setattr(Database, "made", [], raising=False)
    monkeypatch.setattr(checkpoint, "Connections", Database)
    return Database.made


def store(*answers: Any) -> PgmqCheckpoints:
    """Return a store whose database gives these answers."""
    Database.answers = iter(answers)
    return PgmqCheckpoints("")


def test_a_passing_error_is_asked_again_and_a_second_one_raised(made: list[Database]) -> None:
    """Every statement may be repeated."""
    lost, replica = psycopg.OperationalError("lost"), psycopg.errors.ReadOnlySqlTransaction("no")
    assert store(lost, [("text",)]).load("id", 1) == (True, "text")
    assert store(replica, [("text",)]).load("id", 1) == (True, "text")
    with pytest.raises(psycopg.OperationalError):
        store(lost, lost).load("id", 1)
    assert [len(each.asked) for each in made] == [2, 2, 2]


def test_a_wrong_statement_is_not_asked_again() -> None:
    """It would be as wrong the next time."""
    with pytest.raises(psycopg.DataError):
        store(psycopg.DataError("no")).load("id", 1)


@pytest.mark.parametrize("error", [psycopg.OperationalError("lost"), OSError("no route")])
def test_expired_rows_that_cannot_be_deleted_cost_no_save(
    made: list[Database], error: Exception
) -> None:
    """The state is stored by then."""
    assert store([("text",)], error).save("id", 1, "text")
    assert made[0].asked == ["INSERT", "WITH"]


def test_a_missing_table_is_created_by_who_writes(made: list[Database]) -> None:
    """And by nobody else."""
    missing = psycopg.errors.UndefinedTable("no such table")
    assert store(missing).peek("id") is None
    assert store(missing, [], [("text",)], [(0,)]).save("id", 1, "text")
    assert [each.asked for each in made] == [["SELECT"], ["INSERT", "DO", "INSERT", "WITH"]]


def test_a_refusal_names_the_user_and_the_statements() -> None:
    """Of the first line of the server's error alone."""
    denied = psycopg.errors.InsufficientPrivilege("permission denied\nDETAIL: ...")
    with pytest.raises(NoCheckpointTable) as refused:
        store(denied, [('"We.ird"',)]).save("id", 1, "text")
    said = str(refused.value)
    assert "(permission denied)" in said
    assert said.endswith(f"{checkpoint.CREATE}; {checkpoint.GRANT} " + '"We.ird"')


def test_each_process_has_connections_of_its_own(
    made: list[Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child that is forked uses none of its parent's."""
    kept = store([("a",)], [("b",)], [("c",)])
    kept.load("id", 1)
    with monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: 0)
        kept.load("id", 1)
    kept.load("id", 1)
    assert [len(each.asked) for each in made] == [2, 1]
