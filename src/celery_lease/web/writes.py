"""The actions that change something: each is confirmed on a page, and logged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click
from starlette.concurrency import run_in_threadpool

from celery_lease.cli import rows
from celery_lease.cli.cancel import WORDS, outcome
from celery_lease.cli.dead import chosen_of, opened
from celery_lease.cli.hand_over import outcomes
from celery_lease.cli.workers import best_answers
from celery_lease.view.asking import node_of
from celery_lease.web.guard import Refused, read_form
from celery_lease.web.site import REPLY, Site, logger, trouble_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from starlette.requests import Request
    from starlette.responses import Response

    #: Returns the results, line by line, and whether each is a success.
    Act = Callable[[Site, Sequence[str], bool], list[tuple[str, bool]]]

#: The most lines in the log for one action.
NAMED = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """An action on tasks, dead letters or workers."""

    name: str  #: also its path
    verb: str  #: the text of its button
    thing: str  #: its object, in the singular
    back: str  #: the page to return to
    warning: str  #: its effect
    act: Act
    grave: bool = False  #: it cannot be undone


@dataclass(frozen=True, slots=True)
class Writes:
    """The endpoint of all actions."""

    site: Site
    write: Write

    async def __call__(self, request: Request) -> Response:
        """Ask for a confirmation, or perform the action."""
        try:
            fields = await read_form(request)
        except Refused as exc:
            logger.warning("%s refused, from %s: %s", self.write.name, _client(request), exc)
            return await self._draw(request, 403, refused=str(exc))
        names, every = list(dict.fromkeys(fields.get("id", []))), "all" in fields
        if not (names or every):
            return await self._draw(request, 400, refused="nothing was chosen")
        if "confirmed" not in fields:
            return await self._draw(request, names=names, every=every)
        lines = await run_in_threadpool(self._do, request, names, every)
        return await self._draw(request, lines=lines)

    def _do(self, request: Request, names: Sequence[str], every: bool) -> list[tuple[str, bool]]:
        try:
            lines = self.write.act(self.site, names, every)
        except click.ClickException as exc:
            lines = [(trouble_of(exc), False)]
        self.site.shared.forget()
        for line, good in lines[:NAMED]:
            logger.warning(
                "%s by %s from %s: %s%s",
                self.write.name,
                request.scope["lease_user"] or "somebody",
                _client(request),
                "" if good else "not done: ",
                rows.printable(line),
            )
        if len(lines) > NAMED:
            logger.warning("%s: and %d more", self.write.name, len(lines) - NAMED)
        return lines

    async def _draw(self, request: Request, status: int = 200, **context: Any) -> Response:
        known = {"names": [], "every": False, "refused": "", "lines": None, **context}
        look = self.site.watch.latest
        return self.site.draw(request, "write", status, look=look, write=self.write, **known)


def _client(request: Request) -> str:
    return request.client.host if request.client else "an unknown address"


def _cancel(site: Site, ids: Sequence[str], _every: bool) -> list[tuple[str, bool]]:
    replies = site.ask("lease_cancel", {"task_id": list(ids)})
    found = best_answers(replies, WORDS)
    return [outcome(site.app, each, found.get(each), len(replies)) for each in ids]


def _hand_over(site: Site, ids: Sequence[str], _every: bool) -> list[tuple[str, bool]]:
    return outcomes(list(ids), site.ask("lease_hand_over", {"task_id": list(ids)}))


def _command(command: str) -> Act:
    def act(site: Site, names: Sequence[str], _every: bool) -> list[tuple[str, bool]]:
        replies = site.ask(command, {}, names)
        said = [
            (f"{name}: {reply.get('ok') or reply.get('error')}", "error" not in reply)
            for name, reply in sorted(replies.items())
        ]
        replied = {*map(node_of, replies)}
        silent = [name for name in names if name not in replied]
        return said + [(f"{name}: no reply within {REPLY:g} s", False) for name in silent]

    return act


def _dealt(how: str, done: str) -> Act:
    def act(site: Site, ids: Sequence[str], every: bool) -> list[tuple[str, bool]]:
        lines = []
        with opened(site.app, ()) as (letters, named):
            for letter in chosen_of(letters, named, None if every else ids):
                there = getattr(letters, how)(letter)
                what = done.format(queue=letter.origin) if there else "is gone already"
                lines.append((f"{letter.task}[{letter.task_id}] {what}", there))
        return lines or [("there are no dead letters", False)]

    return act


WRITES = (
    Write(
        name="cancel",
        verb="Cancel",
        thing="task",
        back="",
        warning="The next beat of a task that runs raises TaskCancelled: it cleans up and ends as "
        "REVOKED. A task that waits is revoked, wherever it waits.",
        act=_cancel,
        grave=True,
    ),
    Write(
        name="hand-over",
        verb="Hand over",
        thing="task",
        back="",
        warning="The next beat of a task that is lease_interruptible raises ShutdownRequested. Its "
        "message is requeued, no loss is counted, and the next run continues from the checkpoint: "
        "without one, from the beginning.",
        act=_hand_over,
    ),
    Write(
        name="replay",
        verb="Replay",
        thing="dead letter",
        back="dead",
        warning="Each returns to the queue it came from, its losses are no longer counted, and "
        "it runs as soon as a worker of that queue takes it.",
        act=_dealt("retry", "replayed to queue {queue}"),
    ),
    Write(
        name="discard",
        verb="Discard",
        thing="dead letter",
        back="dead",
        warning="Each is deleted for good: its task never runs, and its arguments are gone.",
        act=_dealt("purge", "discarded"),
        grave=True,
    ),
    Write(
        name="drain",
        verb="Drain",
        thing="worker",
        back="workers",
        warning="It takes no more messages and finishes running tasks. Reserved messages are "
        "requeued at once. It stays up until it is resumed or stopped.",
        act=_command("lease_drain"),
    ),
    Write(
        name="resume",
        verb="Resume",
        thing="worker",
        back="workers",
        warning="It takes messages again.",
        act=_command("lease_resume"),
    ),
)
