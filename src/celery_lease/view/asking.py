"""Asks workers by Celery's remote control, each by its unique identity.

Celery names a reply by the worker's node name. Two workers may share a name by mistake (a copied
unit file, a container without ``-n``), and then one reply would hide the other.

A question is sent once. Celery itself sends it by another connection, of the app's pool, and while
the broker is away kombu repeats that without end and without a log line.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from kombu import Producer

from celery_lease import brokers
from celery_lease.worker.control import WHO  # and ``celery inspect leases`` knows it by this

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from celery import Celery

    Replies = list[tuple[str, Any]]  # one for each worker, with its node name
    #: Sends a command to workers, and returns their replies by name: the command, names of nodes
    #: (empty: all), seconds, arguments.
    Ask = Callable[[str, Sequence[str], float, dict[str, Any]], dict[str, Any]]

#: Prefix of the commands of :mod:`celery_lease.worker.control`, which plain Celery does not know.
OURS = "lease"
#: Seconds for which a question stays at the server after its end.
LEFT_BEHIND = 0.05
#: Seconds for the reply of a second worker of the same name, after the first has replied.
NAMESAKE = 0.5
#: Stands for no limit of replies.
EVERYBODY = 10_000

_IDENTITY = re.compile(r":\d+:[0-9a-f]+$")


def node_of(label: str) -> str:
    """Return the node's name from a worker's name or identity."""
    return label.rsplit(":", 2)[0] if _IDENTITY.search(label) else label


def is_askable(connection: Any) -> bool:
    """Whether remote control commands reach workers on a *connection*'s broker."""
    silent = brokers.driver_class(connection.transport.driver_type).unaskable
    return not silent and bool(connection.supports_exchange_type("fanout"))


def replies_to(
    app: Celery,
    command: str,
    names: Sequence[str] = (),
    *,
    timeout: float,
    connection: Any,
    arguments: dict[str, Any] | None = None,
    awaited: Mapping[str, int] | None = None,
    callback: Callable[[dict[str, Any]], None] | None = None,
) -> Replies:
    """Return the replies of the named workers, or of all, in the order of their arrival.

    The wait ends *timeout* s after the last reply, or as soon as each name of *awaited* has its
    number of replies; left out: one for each of *names*. kombu counts replies alone, so that one
    worker's second reply would end the wait for another worker's first.

    Raises:
        Exception: An error of kombu's transport; the broker is away.
    """
    replies: Replies = []
    missing = dict(dict.fromkeys(names, 1) if awaited is None else awaited)

    def hear(body: dict[str, Any]) -> None:
        if callback is not None:
            callback(body)
        for name, reply in body.items():
            replies.append((name, reply))
            if name in missing:
                missing[name] -= 1
        if missing and max(missing.values()) <= 0:
            raise TimeoutError  # what ends kombu's wait

    mailbox: Any = app.control.mailbox(connection)  # type: ignore[attr-defined]
    mailbox.producer_or_acquire = lambda _, channel: _Once(channel, auto_declare=False)
    mailbox._broadcast(  # noqa: SLF001  (as Celery's Control.broadcast)
        command,
        arguments,
        list(names) or None,
        reply=True,
        timeout=timeout,
        limit=EVERYBODY,
        callback=hear,
    )
    return replies


def leave_little(connection: Any) -> None:
    """Prepare a *connection* for several questions, one after another.

    On Redis a question that took all of its time leaves a request for replies behind, and until
    that is answered kombu reads no reply to the next question.
    """
    channel = connection.default_channel
    if hasattr(channel, "brpop_timeout"):
        channel.brpop_timeout = LEFT_BEHIND


class _Once(Producer):
    """Sends a mailbox's messages without retries."""

    def publish(self, *args: Any, **options: Any) -> Any:
        return super().publish(*args, **{**options, "retry": False})


class Asker:
    """Asks workers by an open connection, any number of times. For one thread.

    Commands of celery-lease go to no worker that does not know them, unless it is named: a plain
    Celery worker would write a traceback to its log.
    """

    def __init__(self, app: Celery, connection: Any) -> None:
        self.known: Mapping[str, Sequence[str]] = {}  #: identities that replied, by node name
        self._app, self._connection = app, connection
        leave_little(connection)

    @property
    def duplicates(self) -> dict[str, Sequence[str]]:
        """The identities of workers that share a node name, by that name."""
        return {node: who for node, who in self.known.items() if len(who) > 1}

    def __call__(
        self, command: str, names: Sequence[str], timeout: float, arguments: dict[str, Any]
    ) -> dict[str, Any]:
        """Return replies by node name, or by identity where workers share a name."""
        if not command.startswith(OURS):
            return dict(self._send(command, names, timeout, arguments))
        if names:
            return self._ask_named(command, names, timeout, arguments)
        leased, plain = [], False
        for node, each in self._send("stats", (), timeout, WHO):
            plain = plain or "lease" not in each
            leased += [(node, each)] if "lease" in each else []
        self.known = _identities(leased)
        if not leased:
            return {}
        # Without plain workers all get the command, also one that was too busy to answer stats.
        names = list(self.known) if plain else ()
        awaited = {node: len(who) or 1 for node, who in self.known.items()}
        return _named(self._send(command, names, timeout, arguments, awaited), self.known)

    def _ask_named(
        self, command: str, names: Sequence[str], timeout: float, arguments: dict[str, Any]
    ) -> dict[str, Any]:
        """Ask nodes by name, and once more if two workers share one of the names.

        A second receipt of these commands does no harm.
        """
        replies = self._send(command, names, timeout, arguments)
        here = list(dict(replies))
        if here:
            all_of_them = dict.fromkeys(here, EVERYBODY)
            stats = self._send("stats", here, min(NAMESAKE, timeout), WHO, all_of_them)
            self.known = _identities([each for each in stats if "lease" in each[1]])
        if self.duplicates:
            awaited = {name: len(self.known.get(name) or (name,)) for name in here}
            replies = self._send(command, here, timeout, arguments, awaited)
        return _named(replies, self.known)

    def _send(
        self,
        command: str,
        names: Sequence[str],
        timeout: float,
        arguments: dict[str, Any],
        awaited: Mapping[str, int] | None = None,
    ) -> Replies:
        return replies_to(
            self._app,
            command,
            names,
            timeout=timeout,
            arguments=arguments,
            connection=self._connection,
            awaited=awaited,
        )


def _identities(stats: Replies) -> dict[str, list[str]]:
    """Return the identities that replied, by node name; older versions have none."""
    found: dict[str, list[str]] = {}
    for node, each in stats:
        who = found.setdefault(node, [])
        identity = str(each["lease"].get("worker") or "")
        if identity and identity not in who:
            who.append(identity)
    return found


def _named(replies: Replies, known: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Return replies by node name, or by identity where several workers share one.

    A worker may reply twice: by what stands in for its main loop, and by that loop later, when the
    task may be over. Its first reply counts.
    """
    found: dict[str, Any] = {}
    for node in dict(replies):
        # Replies with an identity first; the others belong to workers without leases.
        said = [reply for each, reply in replies if each == node]
        said.sort(key=lambda each: not _worker_in(each))
        who = known.get(node, ())
        if len(who) < 2:  # noqa: PLR2004
            found[node] = said[0]
            continue
        for reply in said:
            left = [each for each in who if each not in found]
            identity = _worker_in(reply) or (left[0] if left else "")
            if identity:
                found.setdefault(identity, reply)
    return found


def _worker_in(reply: Any) -> str:
    """Return the identity in a reply; "": there is none."""
    facts = reply[0] if isinstance(reply, list) and reply else reply
    return str(facts.get("worker") or "") if isinstance(facts, dict) else ""
