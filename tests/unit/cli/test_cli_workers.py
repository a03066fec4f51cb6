"""Whom a command of leases is sent to."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from celery_lease.cli.workers import CannotAsk, asker
from celery_lease.worker.control import WHO

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_lease.view.asking import Asker

LEASED, PLAIN = {"lease": {"version": "1"}, "pid": 7}, {"pid": 8}
#: Replies were awaited until the time was over.
ALL = "all"


class Control:
    """Workers that all reply, what they were sent, and how many replies were awaited."""

    def __init__(self, *more: tuple[str, dict[str, Any]], **stats: dict[str, Any]) -> None:
        self.stats = [*stats.items(), *more]
        self.sent: list[tuple[str, list[str] | None, int | str]] = []

    def mailbox(self, _connection: Any) -> Control:
        """Return what sends by a connection."""
        return self

    def _broadcast(
        self,
        command: str,
        arguments: dict[str, Any],
        destination: list[str] | None,
        *,
        limit: int,
        callback: Callable[[dict[str, Any]], None],
        **_: Any,
    ) -> None:
        """Send, as kombu does, which reads a reply after another until one is late."""
        assert command != "stats" or arguments == WHO
        replies = [
            {name: each if command == "stats" else self.reply(each)}
            for name, each in self.stats
            if destination is None or name in destination
        ]
        for number, reply in enumerate(replies[:limit], 1):
            try:
                callback(reply)
            except TimeoutError:
                self.sent.append((command, destination, number))
                return
        self.sent.append((command, destination, ALL))

    def reply(self, stats: dict[str, Any]) -> Any:
        """Answer any other command; a worker that holds something says who it is."""
        if stats.get("replies"):
            return stats["replies"].pop(0)
        return [{"worker": stats["lease"]["worker"]}] if stats.get("holds") else []


def asker_of(control: Control, transport: str = "redis") -> Asker:
    """Return what asks workers."""
    connection = SimpleNamespace(
        transport=SimpleNamespace(driver_type=transport),
        supports_exchange_type=lambda _: transport != "nats",
        default_channel=SimpleNamespace(),
    )
    app: Any = SimpleNamespace(control=control, connection_or_acquire=nullcontext)
    return asker(app, connection)


def ask(control: Control, command: str, *names: str, transport: str = "redis") -> dict[str, Any]:
    """Ask workers by a command."""
    return asker_of(control, transport)(command, list(names), 1.0, {})


def test_a_worker_that_does_not_know_leases_is_not_asked_for_them() -> None:
    """It would write a traceback to its log."""
    control = Control(a=LEASED, b=PLAIN)
    assert ask(control, "leases") == {"a": []}
    assert control.sent == [("stats", None, ALL), ("leases", ["a"], 1)]


def test_where_all_know_leases_a_silent_one_hears_of_it_too() -> None:
    """And nobody waits for it."""
    control = Control(a=LEASED, b=LEASED)
    assert ask(control, "lease_cancel") == {"a": [], "b": []}
    assert control.sent[-1] == ("lease_cancel", None, 2)


def test_workers_without_leases_are_no_reply() -> None:
    """However many there are."""
    control = Control(a=PLAIN)
    assert ask(control, "lease_drain") == {}
    assert control.sent == [("stats", None, ALL)]


@pytest.mark.parametrize(("command", "names"), [("leases", ["b"]), ("enable_events", [])])
def test_celerys_own_commands_and_named_workers_are_asked_at_once(
    command: str, names: list[str]
) -> None:
    """The first ones everybody knows, of the others the asker does."""
    control = Control(a=LEASED, b=PLAIN)
    ask(control, command, *names)
    asked, *after = control.sent
    assert asked == (command, names or None, len(names) or ALL)
    # Whether the name is one worker's alone is asked when it has replied.
    assert after == ([("stats", names, ALL)] if names else [])


@pytest.mark.parametrize("names", [[], ["a"]])
def test_workers_of_one_name_reply_by_their_identities(names: list[str]) -> None:
    """Neither hides the other, also where only one of them says who it is."""
    one = {"lease": {"version": "1", "worker": "a:1:ab"}}
    two = {"lease": {"version": "1", "worker": "a:2:ab"}, "holds": True}
    control = Control(("a", one), ("a", two))
    asks = asker_of(control)
    assert asks("leases", names, 1.0, {}) == {"a:2:ab": [{"worker": "a:2:ab"}], "a:1:ab": []}
    assert asks.duplicates == {"a": ["a:1:ab", "a:2:ab"]}


def test_a_worker_that_replies_twice_is_one() -> None:
    """Its main loop and what stands in for it may both reply."""
    one = {"lease": {"version": "1", "worker": "a:1:ab"}}
    asks = asker_of(Control(("a", one), ("a", one)))
    assert asks("leases", [], 1.0, {}) == {"a": []}
    assert asks.duplicates == {}


@pytest.mark.parametrize("names", [[], ["a", "b"]])
def test_the_first_of_a_worker_s_replies_counts_and_takes_no_place_of_another_s(
    names: list[str],
) -> None:
    """A solo worker's main loop replies when the task of which it was asked is over."""
    told, unknown = {"worker": "a:1:ab", "tasks": "told"}, {"worker": "a:1:ab", "tasks": "unknown"}
    solo = {"lease": {"version": "1", "worker": "a:1:ab"}, "replies": [told, unknown]}
    other = {"lease": {"version": "1", "worker": "b:1:ab"}, "holds": True}
    control = Control(("a", solo), ("a", solo), ("b", other))
    asks = asker_of(control)
    assert asks("lease_cancel", names, 1.0, {}) == {"a": told, "b": [{"worker": "b:1:ab"}]}
    assert ("lease_cancel", names or None, 3) in control.sent


@pytest.mark.parametrize("transport", ["pgmq", "sqs", "nats"])
def test_a_broker_without_remote_control_is_told_before_anything_is_sent(transport: str) -> None:
    """A try would leave a queue there, or end in a traceback."""
    control = Control(a=LEASED)
    with pytest.raises(CannotAsk, match=f"(?i)workers on {transport} cannot be reached") as caught:
        ask(control, "leases", transport=transport)
    assert caught.value.exit_code == 69
    assert control.sent == []
