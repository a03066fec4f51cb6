"""The endpoints of all pages, each with JSON in the schema of the corresponding command."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click
from sse_starlette import EventSourceResponse
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse

from celery_lease.cli import rows
from celery_lease.cli.dead import facts as letter_facts, letters_of, loss as loss_facts, opened
from celery_lease.cli.doctor.examine import examine
from celery_lease.cli.doctor.report import by_subject, facts as report_facts
from celery_lease.cli.exclusive import document as keys_document, keys_in_use
from celery_lease.cli.explain import document as task_document, facts_in_view
from celery_lease.cli.stack import seen
from celery_lease.cli.status import document as leases_document
from celery_lease.cli.story import Facts, story_of
from celery_lease.web import board
from celery_lease.web.crew import Hand, arguments_of, crew_of, document as crew_document
from celery_lease.web.picture import SPANS, document as history_document, picture, task_picture
from celery_lease.web.site import REPLY, Site, trouble_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from starlette.requests import Request
    from starlette.responses import Response

    from celery_lease.core.keys import KeyUse

T = TypeVar("T")

#: Seconds between two checks whether there is a new look for a viewer.
NEWS = 0.2
#: Seconds for which all viewers get the same answer.
TASK, DEAD, CREW, DOCTOR = 1.0, 5.0, 3.0, 10.0
#: The most characters of a checkpoint's state on the page.
LONGEST_STATE = 5000
#: The most dead letters on the page.
LETTERS = 200
#: The most keys on the page.
KEYS = 200


@dataclass(frozen=True, slots=True)
class Pages:
    """Endpoints; all but ``news`` run in threads, as they may wait for the broker."""

    site: Site

    def board(self, request: Request) -> Response:
        look, query = self.site.watch.current(), board.Query.of(request.query_params)
        found = board.chosen(look, query)
        pages = max(1, -(-len(found) // board.PAGE))
        number = min(query.page, pages)
        some = found[(number - 1) * board.PAGE : number * board.PAGE]
        return self.site.draw(
            request,
            "board",
            look=look,
            query=query,
            choices=board.choices(look),
            headers=rows.HEADERS,
            sorts=board.SORTED_BY,
            shown=board.shown(self.site.watch, look, some),
            found=len(found),
            number=number,
            pages=pages,
        )

    def board_json(self, request: Request) -> Response:
        """Return all leases and parked messages for a query, as ``lease status --json``."""
        look, query = self.site.watch.current(), board.Query.of(request.query_params)
        found = [self.site.watch.row_now(row, look) for row in board.chosen(look, query)]
        return JSONResponse(leases_document(look.view, found), 503 if look.trouble else 200)

    async def news(self, _: Request) -> Response:
        """Send the number of each look, as server-sent events."""
        watch = self.site.watch

        async def numbers() -> AsyncIterator[dict[str, Any]]:
            sent = (-1, "")
            while not watch.over.is_set():
                look = watch.seen()
                # In a thread only if it waits: for the first viewer after a while.
                if (look.number, look.trouble) == sent:
                    watch.viewed_at = watch.clock.now()
                else:
                    look = await run_in_threadpool(watch.current)
                    sent = (look.number, look.trouble)
                    yield {"event": "look", "data": str(look.number)}
                await asyncio.sleep(NEWS)

        return EventSourceResponse(numbers(), headers={"Cache-Control": "no-store"})

    def task(self, request: Request) -> Response:
        look, task_id = self.site.watch.current(), request.query_params.get("id", "").strip()
        facts, trouble = _tried(self._facts, task_id)
        arguments, unasked = _tried(self._arguments, facts)
        held = [row for row in look.view.rows if row.id == task_id]
        return self.site.draw(
            request,
            "task",
            look=look,
            task_id=task_id,
            facts=facts,
            arguments=arguments,
            checkpoint=self._state(facts),
            losses=[loss_facts(each) for each in facts.losses] if facts else [],
            story=list(story_of(facts, self.site.now())) if facts else [],
            trouble=trouble or unasked or look.trouble,
            shown=board.shown(self.site.watch, look, held),
            picture=task_picture(self.site.watch.history, self.site.now(), task_id),
        )

    def task_json(self, request: Request) -> Response:
        """Return one task as ``lease explain --json``."""
        facts, trouble = _tried(self._facts, request.query_params.get("id", "").strip())
        if facts is None:
            return JSONResponse({"error": trouble}, 503)
        return JSONResponse(task_document(facts, self.site.now()), 200 if facts.is_known else 404)

    def stack(self, request: Request) -> Response:
        task_id = request.query_params.get("id", "").strip()
        found, trouble = _tried(self._stacks, task_id)
        return self.site.draw(request, "stack", task_id=task_id, seen=found or [], trouble=trouble)

    def timeline(self, request: Request) -> Response:
        given = request.query_params.get("minutes", "")
        minutes = int(given) if given in map(str, SPANS) else SPANS[0]
        history = self.site.watch.history
        return self.site.draw(
            request,
            "timeline",
            minutes=minutes,
            spans=SPANS,
            history=history,
            picture=picture(history, self.site.now(), minutes * 60),
        )

    def timeline_json(self, _: Request) -> Response:
        history = self.site.watch.history
        return JSONResponse(history_document(history.bars(), history))

    def dead(self, request: Request) -> Response:
        found, trouble = _tried(self._letters)
        letters = found or []
        return self.site.draw(
            request, "dead", letters=letters[:LETTERS], count=len(letters), trouble=trouble
        )

    def letter(self, request: Request) -> Response:
        """Show one dead letter, or several of one task."""
        task_id = request.query_params.get("id", "")
        found, trouble = _tried(self._letters)
        return self.site.draw(
            request,
            "letter",
            task_id=task_id,
            letters=[each for each in found or () if each["task_id"] == task_id],
            show_args=self.site.show_args,
            trouble=trouble,
        )

    def dead_json(self, _: Request) -> Response:
        """Return all dead letters as ``lease dead list --json``."""
        return _answer(lambda: {"letters": [self._without_args(each) for each in self._letters()]})

    def keys(self, request: Request) -> Response:
        found, trouble = _tried(self._keys)
        keys = found or ()
        return self.site.draw(request, "keys", keys=keys[:KEYS], count=len(keys), trouble=trouble)

    def keys_json(self, _: Request) -> Response:
        """Return all keys as ``lease keys --json``."""
        return _answer(lambda: keys_document(self._keys()))

    def workers(self, request: Request) -> Response:
        crew, trouble = _tried(self._crew)
        return self.site.draw(request, "workers", crew=crew, trouble=trouble)

    def workers_json(self, _: Request) -> Response:
        return _answer(lambda: crew_document(self._crew()))

    def doctor(self, request: Request) -> Response:
        report = self._report()
        subjects = list(by_subject(report.findings))
        return self.site.draw(request, "doctor", report=report, subjects=subjects)

    def doctor_json(self, _: Request) -> Response:
        """Return the findings as ``lease doctor --json``."""
        return JSONResponse(report_facts(self._report()))

    def _stacks(self, task_id: str) -> list[tuple[str, Mapping[str, Any]]]:
        def ask() -> list[tuple[str, Mapping[str, Any]]]:
            return seen(self.site.ask("lease_stack", {"task_id": task_id}))

        return self.site.shared.get(("stack", task_id), TASK, ask)

    def _crew(self) -> Sequence[Hand]:
        return self.site.shared.get("crew", CREW, lambda: crew_of(self.site.app, REPLY))

    def _report(self) -> Any:
        return self.site.shared.get("doctor", DOCTOR, lambda: examine(self.site.app, REPLY))

    def _keys(self) -> Sequence[KeyUse]:
        return self.site.shared.get("keys", CREW, lambda: keys_in_use(self.site.app))

    def _letters(self) -> list[dict[str, Any]]:
        def read() -> list[dict[str, Any]]:
            with opened(self.site.app, ()) as (letters, named):
                return [letter_facts(letter) for letter in letters_of(letters, named)]

        return self.site.shared.get("dead", DEAD, read)

    def _without_args(self, letter: dict[str, Any]) -> dict[str, Any]:
        """Return a letter without its payload, unless arguments are shown."""
        hidden = () if self.site.show_args else ("body", "headers")
        return {name: value for name, value in letter.items() if name not in hidden}

    def _arguments(self, facts: Facts | None) -> tuple[str, str] | None:
        """Return the arguments of a task that a worker holds, if they may be shown."""
        if not (self.site.show_args and facts and facts.askable and facts.held):
            return None
        task_id, node = facts.task_id, facts.held[0].hostname
        key = ("arguments", facts.held[0].tag)  # those of a delivery never change
        app = self.site.app
        return self.site.shared.get(key, 60, lambda: arguments_of(app, task_id, node, REPLY))

    def _state(self, facts: Facts | None) -> str | None:
        """Return the state in a task's checkpoint, where it may be shown."""
        if facts is None or facts.checkpoint is None or not self.site.show_args:
            return None
        return json.dumps(facts.checkpoint.value, indent=2, ensure_ascii=False)[:LONGEST_STATE]

    def _facts(self, task_id: str) -> Facts:
        """Return the facts about a task; its leases come from the watch's last look."""
        if not task_id:
            raise click.ClickException("no task was named")

        def find() -> Facts:
            look = self.site.watch.current()
            return facts_in_view(self.site.app, look.view, look.askable, task_id, REPLY)

        return self.site.shared.get(("task", task_id), TASK, find)


def _tried(read: Callable[..., T], *args: Any) -> tuple[T | None, str]:
    """Return the result of *read* and "", or None and why there is none."""
    try:
        return read(*args), ""
    except click.ClickException as exc:
        return None, trouble_of(exc)


def _answer(read: Callable[[], dict[str, Any]]) -> Response:
    """Return a document as JSON, or why it cannot be read."""
    document, trouble = _tried(read)
    return JSONResponse({"error": trouble}, 503) if document is None else JSONResponse(document)
