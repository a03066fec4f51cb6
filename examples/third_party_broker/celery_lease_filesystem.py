"""Leases on kombu's ``filesystem://``: a message that is held is a file in the folder ``held``.

Kombu keeps a message in a file of ``data_folder_in`` and deletes it as it is delivered. Here it is
moved to ``held`` instead, under a name of this one delivery, its tag: a former holder knows no name
of the next delivery, and that is the fence. The time of the file's last change is the expiry.

All is done under one lock of the file system. The fencing token is a number that the lock's file
holds, and grows with every delivery. Deliveries, losses and what is known of the holder are kept in
the message itself. Kombu names files by the time in milliseconds, so the order is not kept.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty
from typing import TYPE_CHECKING, Any

from kombu.transport import virtual

from celery_lease.brokers.qos import LeasingChannel, SettlingQoS, VirtualDriver, when_leasing
from celery_lease.core.delivery import Answer, Capabilities, Claim, Reaped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from celery_lease.core.clock import Clock
    from celery_lease.core.delivery import Renewal, Terms

#: Seconds that a message may take from its queue to its claim, and that a call waits for the lock.
ARRIVAL, PATIENCE = 5.0, 5.0
#: Key at the top of a message: deliveries, losses, what its holder says, whether its task waits.
KEY, NEW = "lease", (0, 0, {}, True)


class LeaseQoS(SettlingQoS, virtual.QoS):
    """Claims messages as they arrive."""

    driver: FilesystemDriver
    clock: Clock
    arrived: str  # tag of the message at hand, if it was moved to the held ones

    @when_leasing
    def append(self, message: Any, delivery_tag: str) -> None:
        """Record a delivery: under a lease if the holder names terms for it."""
        tag, self.arrived = self.arrived, ""
        terms = self.holder.terms(message)
        if terms is None:
            self.driver.complete([tag])  # as kombu does
            super().append(message, delivery_tag)
            return
        claim = self.driver.claim(tag, message._raw, terms, self.clock.now())  # noqa: SLF001
        if claim is None:
            raise Empty  # it goes back when its arrival expires
        message.delivery_tag = claim.tag
        self.leased.add(claim.tag)
        super().append(message, claim.tag)
        self.holder.claimed(claim, message)


class Leasing(LeasingChannel):
    """Takes messages out of the folder as the driver does."""

    QoS = LeaseQoS

    @when_leasing
    def _get(self: Any, queue: str) -> Any:
        self.qos.arrived, payload = self.lease_driver.take(queue)
        return payload


class FilesystemDriver(VirtualDriver):
    """Leases in one folder. Any thread may use it, and any process of the host."""

    capabilities = Capabilities(
        extends=True, fences=True, confirms=True, granularity=0.0, reaps=True
    )
    channel_class = Leasing

    def __init__(self, incoming: str | Path) -> None:
        self.incoming = Path(incoming)
        self.held = self.incoming / "held"

    @classmethod
    def connect(cls, channel: Any, clock: Clock | None = None) -> FilesystemDriver:  # noqa: ARG003
        """Return a driver for the folder of a *channel*; the file system's clock counts."""
        return cls(channel.data_folder_in)

    def take(self, queue: str) -> tuple[str, Any]:
        """Move the next message of a *queue* to the held ones; return its tag and itself."""
        with self._locked() as counter:
            for path in sorted(self.incoming.iterdir()):
                if path.name.partition(".")[2] != f"{queue}.msg":
                    continue
                with suppress(FileNotFoundError, ValueError):  # taken by others; not yet written
                    payload = json.loads(path.read_bytes())
                    counter.seek(0)
                    token = int(counter.read() or 0) + 1
                    counter.truncate(0)
                    counter.write(str(token))
                    held = path.rename(self.held / f"{token}~{path.name}")
                    os.utime(held, (0, time.time() + ARRIVAL))
                    return held.name, payload
        raise Empty

    def claim(self, tag: str, payload: Any, terms: Terms, asked_at: float) -> Claim | None:
        """Take a message that has just arrived under a lease; None: it took too long."""
        deliveries, losses, *_ = payload.get(KEY, NEW)
        payload = {**payload, KEY: (deliveries + 1, losses, dict(terms.about), terms.waits)}
        expiry = time.time() + terms.seconds
        if self._each([tag], lambda held: _write(held, payload, expiry)) != [Answer.HELD]:
            return None
        return Claim(
            tag=tag,
            token=int(tag.partition("~")[0]),
            queue=_queue(tag),
            deliveries=deliveries + 1,
            losses=losses,
            asked_at=asked_at,
            seconds=terms.seconds,
        )

    def extend(self, renewals: Sequence[Renewal], *, timeout: float) -> list[Answer]:
        """Move expiries."""
        wanted = {each.tag: each for each in renewals}

        def act(held: Path) -> None:
            renewal = wanted[held.name]
            if not renewal.late and held.stat().st_mtime <= time.time():
                raise FileNotFoundError
            os.utime(held, (0, time.time() + renewal.seconds))

        return self._each([each.tag for each in renewals], act, timeout)

    def begin(self, tags: Sequence[str]) -> list[Answer]:
        """Note that tasks begin: from now on an expiry is a loss."""

        def act(held: Path) -> None:
            payload = json.loads(held.read_bytes())
            payload[KEY][3] = False
            _write(held, payload, held.stat().st_mtime)

        return self._each(tags, act)

    def complete(self, tags: Sequence[str]) -> list[Answer]:
        """Delete messages."""
        return self._each(tags, Path.unlink)

    def requeue(
        self, tags: Sequence[str], *, orderly: bool, front: bool, **_why: Any
    ) -> list[Answer]:
        """Return messages to their queues."""
        return self._each(tags, lambda held: self._return(held, orderly=orderly, front=front))

    def reap(self, *, limit: int) -> list[Reaped]:
        """Return expired messages to their queues."""
        with self._locked():
            late = self._late(limit)
            for each in late:
                self._return(self.held / each.tag, orderly=None, front=True)
        return late

    def overdue(self, *, limit: int) -> list[Reaped]:
        """Return what :meth:`reap` would return."""
        with self._locked():
            return self._late(limit)

    def _late(self, limit: int) -> list[Reaped]:
        late = sorted(
            (time.time() - each.stat().st_mtime, each) for each in self.held.glob("*.msg")
        )
        return [
            Reaped(
                tag=held.name,
                queue=_queue(held.name),
                late=seconds,
                about=json.loads(held.read_bytes()).get(KEY, NEW)[2],
            )
            for seconds, held in late[::-1][:limit]
            if seconds >= 0
        ]

    def _return(self, held: Path, *, orderly: bool | None, front: bool) -> None:
        """Return a message; one that expired is lost unless it waited."""
        payload = json.loads(held.read_bytes())
        deliveries, losses, _, waits = payload.get(KEY, NEW)
        losses += not (waits if orderly is None else orderly)
        payload["properties"]["delivery_info"]["redelivered"] = True
        _write(held, {**payload, KEY: (deliveries, losses, {}, True)}, 0.0)
        token, _, name = held.name.partition("~")
        if not front:
            name = f"{round(time.monotonic() * 1000)}_{token}.{_queue(name)}.msg"
        held.rename(self.incoming / name)

    def _each(
        self, tags: Sequence[str], act: Callable[[Path], object], timeout: float = PATIENCE
    ) -> list[Answer]:
        answers: list[Answer] = []
        with suppress(OSError), self._locked(timeout):
            for tag in tags:
                try:
                    act(self.held / tag)
                    answers.append(Answer.HELD)
                except FileNotFoundError:
                    answers.append(Answer.LOST)
        return answers + [Answer.UNKNOWN] * (len(tags) - len(answers))

    @contextmanager
    def _locked(self, timeout: float = PATIENCE) -> Iterator[Any]:
        """Hold the lock, whose file is given; an OSError if that cannot be had in time."""
        self.held.mkdir(exist_ok=True)
        end = time.monotonic() + timeout
        with (self.held / "lock").open("a+") as file:  # closing it unlocks
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > end:
                        raise
                    time.sleep(0.01)
            yield file


def _queue(name: str) -> str:
    return name.partition(".")[2].removesuffix(".msg")


def _write(held: Path, payload: Mapping[str, Any], expiry: float) -> None:
    draft = held.with_suffix(".new")
    draft.write_text(json.dumps(payload))
    os.utime(draft, (0, expiry))
    draft.replace(held)
