"""The parts that all pages share: the app, the watch, the options, the templates."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib.metadata import version
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.responses import HTMLResponse

from celery_lease import brokers
from celery_lease.cli import rows
from celery_lease.cli.broker import reached
from celery_lease.cli.dead import when as iso
from celery_lease.cli.story import when
from celery_lease.cli.workers import asker
from celery_lease.core.words import counted
from celery_lease.web.watch import PageWatch, Shared

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import click
    from celery import Celery
    from starlette.requests import Request

    from celery_lease.web.events import Events

logger = logging.getLogger("celery_lease.web")

#: Seconds for the workers' replies to a page's own questions.
REPLY = 1.0

_TIME = re.compile(r"(\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d) UTC")
_COMMAND = re.compile(r"`([^`\n]+)`")


@cache
def _templates() -> Environment:
    made = Environment(
        loader=PackageLoader("celery_lease.web"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"span": rows.span, "iso": iso, "utc": when, "clean": _clean}
    made.filters["marked"] = _marked
    made.globals |= {"counted": counted}
    return made


@dataclass
class Site:
    """The parts of one page."""

    app: Celery
    watch: PageWatch
    read_only: bool = False
    show_args: bool = False
    events: Events | None = None  #: None: no task events
    shared: Shared = field(default_factory=Shared)

    def draw(
        self, request: Request, name: str, status: int = 200, /, **context: Any
    ) -> HTMLResponse:
        """Return a page, or only its live part if the page's script requests that.

        Its ``look`` is the present one, if *context* has none.
        """
        if self.events is not None:
            self.events.start()
        part = request.headers.get("hx-request") == "true"
        template = _templates().get_template(f"{'_' if part else ''}{name}.html")
        known = {
            "page": name,
            "link": linker(request),
            "csrf": request.scope["lease_csrf"],
            "read_only": self.read_only,
            "has_keys": self.has_keys,
            "events": self.events is not None,
            "version": version("celery-lease"),
            "app_name": self.app.main or "?",
            "look": context.pop("look", None) or self.watch.current(),
            **context,
        }
        return HTMLResponse(template.render(known), status, {"Vary": "HX-Request"})

    def ask(
        self, command: str, arguments: Mapping[str, Any], names: Sequence[str] = ()
    ) -> Mapping[str, Any]:
        """Return the replies of some workers, or of all, to a remote control command.

        Raises:
            click.ClickException: The broker is away, or carries no commands.
        """
        with reached(self.app.connection_for_write()) as connection:
            return asker(self.app, connection)(command, list(names), REPLY, dict(arguments))

    @cached_property
    def has_keys(self) -> bool:
        kind = self.app.connection_for_read().transport.driver_type
        return kind in brokers.drivers() and brokers.driver_class(kind).capabilities.keys

    def now(self) -> float:
        """Return seconds since 1970."""
        return self.watch.clock.wall().timestamp()


def linker(request: Request) -> Callable[..., str]:
    """Return a function that makes links within the page, under any mount path."""
    root = str(request.scope.get("root_path", "")).rstrip("/")

    def link(path: str = "", /, **query: Any) -> str:
        return f"{root}/{path}" + (f"?{urlencode(query, doseq=True)}" if query else "")

    return link


def trouble_of(exc: click.ClickException) -> str:
    """Return the text of an error in one line."""
    return " ".join(exc.format_message().split())


def _marked(text: str) -> Markup:
    """Return a sentence as HTML: its times for the reader's zone, its commands as code."""
    marked = _TIME.sub(r'<time datetime="\1T\2+00:00">\g<0></time>', str(escape(text)))
    return Markup(_COMMAND.sub(r"<code>\1</code>", marked))  # noqa: S704  (escaped above)


def _clean(text: object) -> str:
    """Replace invisible characters, and those that change the reading direction."""
    return "".join(each if each.isprintable() or each in "\n\t" else " " for each in str(text))
