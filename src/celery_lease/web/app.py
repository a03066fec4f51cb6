"""Creates the ASGI app."""

from __future__ import annotations

import secrets as random
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from celery_lease.web.access import Access
from celery_lease.web.events import Events
from celery_lease.web.guard import LOOPBACK, Guard
from celery_lease.web.pages import Pages
from celery_lease.web.site import Site
from celery_lease.web.watch import PageWatch
from celery_lease.web.writes import WRITES, Writes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from celery import Celery
    from starlette.types import Scope

STATIC = Path(__file__).parent / "static"


def create_app(
    celery_app: Celery,
    *,
    hosts: Iterable[str] = (),
    auth: str | None = None,
    auth_token: str | None = None,
    no_auth: bool = False,
    user: Callable[[Scope], str] | None = None,
    read_only: bool = False,
    show_args: bool = False,
    events: bool = False,
    secret: str | None = None,
    watch: PageWatch | None = None,
) -> Starlette:
    """Return the page of a Celery app's leases, to be served or mounted under any path.

    It only answers requests for the names of this host's loopback, unless *hosts* has others; then
    it needs authentication.

    Args:
        celery_app: The app whose leases are shown.
        hosts: Further names of the page's host, without ports; ``"*"``: any.
        auth: ``USER:HASH``, with a hash of ``celery -A APP lease web --make-auth USER``.
        auth_token: A token of at least 16 characters.
        no_auth: Let all in nevertheless: the app around this one authenticates.
        user: Returns that app's name of a request's user, for the log.
        read_only: Offer no action that changes anything.
        show_args: Show the arguments of tasks.
        events: Make the workers send task events while there are viewers, for the timeline.
        secret: Signs forms; the same in all processes that serve the page. None: a random one.
        watch: A watch of the leases in place of the usual one.

    Raises:
        ValueError: Other hosts can reach it, and there is no authentication; or *auth* or
            *auth_token* is unusable.
    """
    names = {*LOOPBACK, *(name.lower().strip("[]") for name in hosts)}
    access = Access.of(auth, auth_token)
    if names - {*LOOPBACK} and access is None and not no_auth:
        other = ", ".join(sorted(names - {*LOOPBACK}))
        raise ValueError(
            f"the page is to be reached as {other}, and anybody could use it: give auth or "
            "auth_token, or no_auth=True where the app around it authenticates users"
        )
    looking = watch or PageWatch(celery_app)
    site = Site(
        celery_app,
        looking,
        read_only=read_only,
        show_args=show_args,
        events=Events(looking) if events else None,
    )

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        site.watch.close()
        if site.events is not None:
            await run_in_threadpool(site.events.close)

    key = (secret or random.token_hex(32)).encode()
    guard = Middleware(
        Guard,
        hosts=names,
        by_address=no_auth or access is not None,
        access=access,
        user=user,
        secret=key,
    )
    return Starlette(routes=list(_routes(site)), middleware=[guard], lifespan=lifespan)


def _routes(site: Site) -> Iterable[Route | Mount]:
    pages = Pages(site)
    looks = {
        "/": pages.board,
        "/board.json": pages.board_json,
        "/task": pages.task,
        "/task.json": pages.task_json,
        "/task/stack": pages.stack,
        "/timeline": pages.timeline,
        "/timeline.json": pages.timeline_json,
        "/dead": pages.dead,
        "/dead/letter": pages.letter,
        "/dead.json": pages.dead_json,
        "/keys": pages.keys,
        "/keys.json": pages.keys_json,
        "/workers": pages.workers,
        "/workers.json": pages.workers_json,
        "/doctor": pages.doctor,
        "/doctor.json": pages.doctor_json,
        "/news": pages.news,
    }
    for path, endpoint in looks.items():
        yield Route(path, endpoint, methods=["GET"])
    if not site.read_only:
        for write in WRITES:
            yield Route(f"/do/{write.name}", Writes(site, write).__call__, methods=["POST"])
    yield Mount("/static", StaticFiles(directory=STATIC), name="static")
