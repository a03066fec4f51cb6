"""Which errors of a Redis server are worth another connection rather than the worker's end."""

from __future__ import annotations

import pytest
from kombu import Connection
from redis import exceptions
from redis._parsers.base import BaseParser

from celery_lease import brokers

REFUSED = [
    "READONLY You can't write against a read only replica.",
    "OOM command not allowed when used memory > 'maxmemory'.",
    "BUSY Redis is busy running a script. You can only call SCRIPT KILL.",
    "BUSY Valkey is busy running a script.",
    "MISCONF Redis is configured to save RDB snapshots, but it is unable to persist to disk.",
    "NOREPLICAS Not enough good replicas to write.",
    "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
    "UNBLOCKED force unblock from blocking operation, instance state changed",
    # Redis 6, where a script meets it:
    (
        "ERR Error running script (call to f_2c): @user_script:1: @user_script: 1: "
        "-READONLY You can't write against a read only replica."
    ),
]
FOR_GOOD = [
    "WRONGTYPE Operation against a key holding the wrong kind of value",
    "NOPERM this user has no permissions to run the 'brpop' command",
    "ERR unknown command 'ZMSCORE'",
]


@pytest.mark.parametrize("text", REFUSED)
def test_a_server_that_refuses_for_now_is_worth_another_try(text: str) -> None:
    """As the client library parses the words, which takes the first one away from some."""
    with Connection("redis://") as connection:
        assert brokers.kind_of(connection).will_pass(BaseParser.parse_error(text))


@pytest.mark.parametrize("text", FOR_GOOD)
def test_a_wrong_key_or_a_missing_right_is_not(text: str) -> None:
    """The next connection would be answered the same."""
    with Connection("redis://") as connection:
        assert not brokers.kind_of(connection).will_pass(BaseParser.parse_error(text))


def test_no_error_of_another_kind_is() -> None:
    """Whatever its text says; and of a transport that knows of none, none is."""
    with Connection("redis://") as connection:
        assert not brokers.kind_of(connection).will_pass(RuntimeError(REFUSED[0]))
    with Connection("memory://") as connection:
        assert not brokers.kind_of(connection).will_pass(exceptions.ReadOnlyError("no"))
