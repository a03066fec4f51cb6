"""What ``celery lease group`` becomes, and what it refuses."""

from __future__ import annotations

import os
import shlex
import sys

import pytest
from celery.bin.celery import celery
from click.testing import CliRunner, Result

from harness import app as harness_app


class Became(Exception):
    """Takes the place of exec, which does not return."""


@pytest.fixture
def became(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The command line of the process that this one would have become."""
    command: list[str] = []

    def execv(_path: str, arguments: list[str]) -> None:
        command.extend(arguments)
        raise Became

    monkeypatch.setattr(os, "execv", execv)
    return command


def call(*arguments: str) -> Result:
    """Run the command as ``celery -A harness.app lease group``."""
    return CliRunner().invoke(celery, ["-A", "harness.app", "lease", "group", *arguments])


def test_each_worker_gets_its_name_its_arguments_and_the_app(became: list[str]) -> None:
    """The name is the node's too, so no two workers of a host can be the same node."""
    result = call("-w", "video:10=-Q 'video,long ones' -c 2", "-w", "mail=")
    assert isinstance(result.exception, Became), result.output
    assert became[:3] == [sys.executable, "-m", "celery_lease.group"]
    video, mail = (became[i + 1 : i + 4] for i, text in enumerate(became) if text == "--member")
    worker = [sys.executable, "-m", "celery", "-A", "harness.app", "worker", "-n"]
    assert video[:2] == ["video", "10"]
    assert shlex.split(video[2]) == [*worker, "video@%h", "-Q", "video,long ones", "-c", "2"]
    assert mail[:2] == ["mail", "0"]
    assert shlex.split(mail[2]) == [*worker, "mail@%h"]


def test_global_flags_reach_the_workers(became: list[str]) -> None:
    """Those that Celery does not put into the environment itself."""
    CliRunner().invoke(
        celery, ["-A", "harness.app", "-q", "-C", "lease", "group", "-w", "mail=-Q mail"]
    )
    assert "-A harness.app --no-color --quiet worker -n mail@%h -Q mail" in became[-1]


def test_workers_have_some_seconds_more_than_the_shutdown_timeout(
    became: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or they would be forced just when they are about to leave by themselves."""
    monkeypatch.setitem(harness_app.app.conf, "lease_shutdown_timeout", 17)
    call("-w", "mail=")
    assert became[3:5] == ["--timeout", "22.0"]


def test_workers_on_sqs_have_the_time_of_their_last_poll(
    became: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed in it, they would leave what it brings to nobody."""
    pytest.importorskip("boto3")
    conf = {"wait_time_seconds": 20}
    monkeypatch.setitem(harness_app.app.conf, "lease_shutdown_timeout", 5)
    monkeypatch.setitem(harness_app.app.conf, "broker_url", "sqs://")
    monkeypatch.setitem(harness_app.app.conf, "broker_transport_options", conf)
    call("-w", "mail=")
    assert became[3:5] == ["--timeout", "26.0"]


def test_a_timeout_that_is_given_is_taken(became: list[str]) -> None:
    """Zero too: SIGQUIT follows at once."""
    call("-w", "mail=", "--timeout", "0")
    assert became[3:5] == ["--timeout", "0.0"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "Missing option"),
        (["-w", "-Q mail"], "NAME[:PRIORITY]=ARGUMENTS, such as"),
        (["-w", "mail:soon=-Q mail"], "NAME[:PRIORITY]=ARGUMENTS, such as"),
        (["-w", "mail='-Q mail"], "No closing quotation"),
        (["-w", "mail=", "-w", "mail="], "a name of its own"),
        (["-w", "mail=-Q mail --detach"], "stays in the foreground"),
        (["-w", "mail=", "--timeout", "-1"], "--timeout"),
    ],
)
def test_a_wrong_command_line_starts_nothing(
    became: list[str], arguments: list[str], complaint: str
) -> None:
    """Exit code 2 and a line that says what was meant."""
    result = call(*arguments)
    assert result.exit_code == 2
    assert complaint in result.output
    assert became == []


def test_wrong_lease_settings_start_nothing(
    became: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One message instead of one from each worker."""
    monkeypatch.setitem(harness_app.app.conf, "lease_extension", -2)
    result = call("-w", "mail=")
    assert result.exit_code == 1
    assert "lease_extension = -2" in result.output
    assert became == []
