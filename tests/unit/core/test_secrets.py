"""What is printed or logged of a broker's address has no password in it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery
from kombu import Connection

from celery_lease.cli.broker import BrokerAway
from celery_lease.cli.doctor import examine, settings, tasks
from celery_lease.cli.doctor.case import Case
from celery_lease.core.secrets import address_of, is_misread, masked, said_of
from celery_lease.worker import compat
from harness.shell import Shell

if TYPE_CHECKING:
    from celery_lease.core.findings import Finding

URLS = [
    "redis://user:s3cr3t@127.0.0.1:9/0",
    "redis://:s3cr3t@127.0.0.1:9/0",
    "rediss://:s3cr3t@127.0.0.1:9/0?ssl_cert_reqs=none",
    "redis+socket://:s3cr3t@/no/socket",
    "redis+socket:///no/socket?password=s3cr3t",
    "sentinel://:s3cr3t@127.0.0.1:9;sentinel://:s3cr3t@127.0.0.2:9",
    "amqp://user:s3cr3t@127.0.0.1:9//",
    "amqp://user:s3cr3t@127.0.0.1:9//;amqp://user:0ther-s3cr3t@127.0.0.1:9//",
    "sqs://AKIA:s3cr3t@",
    "sqla+postgresql://user:s3cr3t@127.0.0.1/db",
]


@pytest.mark.parametrize("url", URLS)
def test_what_is_said_of_a_connection_has_no_password(url: str) -> None:
    """Its address, and errors that carry it in any form: the worker's line, and the commands'."""
    connection = Connection(url)
    consumer: Any = SimpleNamespace(connection=connection)
    said = [
        address_of(connection),
        compat.broker_of(consumer),
        said_of(connection, OSError(f"cannot connect to {url}")),
        said_of(connection, OSError("WRONGPASS for s3cr3t")) if connection.password else "",
        BrokerAway(connection, OSError(f"cannot connect to {url}")).message,
    ]
    assert "s3cr3t" not in "".join(said)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("to redis://:p%40ss@h:1/0 failed", "to redis://:**@h:1/0 failed"),
        ("redis://u:p@ss@h/0", "redis://u:**@h/0"),
        ("host=h password=s3cr3t user=u", "host=h password=** user=u"),
        ("password='s3 cr3t' host=h", "password=** host=h"),
        ("redis://h/0?password=s3cr3t&db=1", "redis://h/0?password=**&db=1"),
        ("amqp://a:b@h//;amqp://c:d@h//", "amqp://a:**@h//;amqp://c:**@h//"),
        ("to amqp://u:p/s@s@h//: refused", "to amqp://u:**@h//: refused"),
        ("redis://h:6379/0, then mail a@b", "redis://h:6379/0, then mail a@b"),
        ("password authentication failed", "password authentication failed"),
    ],
)
def test_a_password_is_masked_wherever_it_stands(text: str, shown: str) -> None:
    """In URLs, in lists of them, in queries and in libpq's strings; nothing else is touched."""
    assert masked(text) == shown


MISREAD = [
    "redis://:s3/cr3t@127.0.0.1:9/0",
    "redis://:s3?cr3t@127.0.0.1:9/0",
    "redis://:s3#cr3t@127.0.0.1:9/0",
    "amqp://user:12/s3cr3t@127.0.0.1:9//",
    "amqp://user:s3cr3t@127.0.0.1:9//;amqp://user:s3/cr3t@127.0.0.1:9//",
    "sqs://AKIA:s3/cr3t@",
]


@pytest.mark.parametrize("url", MISREAD)
@pytest.mark.parametrize("command", [["doctor"], ["status"], ["dead", "list"], ["reap"]])
def test_an_address_that_ends_in_its_password_is_refused(url: str, command: list[str]) -> None:
    """Kombu takes the password for host and port, and says so in its errors."""
    said = Shell(Celery("proj", broker=url, set_as_current=False)).fails(*command)
    assert said.startswith("Error: broker_url is not read as it is meant")
    assert "cr3t" not in said


def test_neither_is_a_result_backend_s_password_told() -> None:
    """The broker's own is right here."""
    app = Celery("proj", broker="memory://", backend=MISREAD[0], set_as_current=False)
    case = Case(app=app, loaded=None, policies={})
    (finding,) = [each for each in settings.check(case) if each.check == "settings.backend"]
    assert finding.severity == "error"
    assert finding.what.startswith("result_backend is not read as it is meant")


@pytest.mark.parametrize(
    "url",
    [
        *URLS,
        "redis://localhost:6379/0?password=s3/cr@t",
        "redis://localhost?password=s3/cr@t",
        "redis+socket:///no/s@cket",
        "amqp://guest:guest@localhost/v@host",
        "sqla+postgresql://user:s3/cr3t@127.0.0.1/db",
        "memory://",
    ],
)
def test_other_addresses_are_read_as_they_are_meant(url: str) -> None:
    """The password of a query may have all of it."""
    assert not is_misread(url)


@pytest.mark.parametrize(
    "url",
    ["filesystem://:s3cr3t@h", "redis://:s3cr3t@127.0.0.1:9/0", "amqp://u:s3cr3t@127.0.0.1:9//"],
)
def test_the_doctor_tells_no_password(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """Neither of a broker that is away, or has no leases, nor in what a check raised."""

    def check(*_: Any) -> list[Finding]:
        raise OSError(url)

    monkeypatch.setattr(tasks, "check", check)
    app = Celery("proj", broker=url, set_as_current=False)
    report = examine.examine(app, 0.1)
    assert report.findings
    assert "s3cr3t" not in repr(report)
