"""Checks every request before a page gets it, and adds headers to every answer.

In this order: the ``Host`` (against DNS rebinding), the user, and for a write its origin and its
token (against forged requests). The token is derived from a cookie that other sites cannot read, so
that a form of another site has none.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from celery_lease.web.access import Access

#: Names of a page that is only served to this host.
LOOPBACK = ("localhost", "127.0.0.1", "::1")
COOKIE = "celery_lease_page"
#: Characters of the cookie.
LENGTH = 32
#: The most bytes of a form that are read.
LARGEST = 1 << 20

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Refused(Exception):
    """A write is refused; its text is the reason."""


@dataclass(slots=True)
class Guard:
    """An ASGI middleware."""

    app: ASGIApp
    hosts: Collection[str]
    by_address: bool  #: this host's addresses are also allowed
    access: Access | None
    user: Callable[[Scope], str] | None  #: returns the user if another app authenticates
    secret: bytes = field(repr=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        session = Request(scope).cookies.get(COOKIE, "")
        new = len(session) != LENGTH
        session = secrets.token_hex(LENGTH // 2) if new else session
        scope["lease_csrf"] = _token(self.secret, session)
        cookie = _cookie(session, scope) if new else ""

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                _complete(MutableHeaders(scope=message), cookie)
            await send(message)

        refusal = self._refusal(scope, headers)
        await (refusal or self.app)(scope, receive, answer)

    def _refusal(self, scope: Scope, headers: Headers) -> PlainTextResponse | None:
        host = host_of(headers.get("host", ""))
        if not self._knows(host):
            text = f"This page does not answer as {host!r}. Start it with --allow-host {host}\n"
            return PlainTextResponse(text, 400)
        scope["lease_user"] = self.user(scope) if self.user else ""
        if self.access is not None:
            who = self.access.who(headers.get("authorization", ""))
            if who is None:
                ask = {"WWW-Authenticate": 'Basic realm="celery-lease", charset="UTF-8"'}
                return PlainTextResponse("Say who you are.\n", 401, ask)
            scope["lease_user"] = who
        return None

    def _knows(self, host: str) -> bool:
        """Whether this name of the page is allowed; DNS cannot give an address another meaning."""
        return host in self.hosts or "*" in self.hosts or (self.by_address and _is_address(host))


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _token(secret: bytes, session: str) -> str:
    return hmac.new(secret, session.encode(), hashlib.sha256).hexdigest()


def _cookie(session: str, scope: Scope) -> str:
    secure = "; Secure" if scope.get("scheme") == "https" else ""
    return f"{COOKIE}={session}; Path=/; HttpOnly; SameSite=Strict{secure}"


def _complete(headers: MutableHeaders, cookie: str) -> None:
    for name, value in HEADERS.items():
        headers[name] = value
    headers.setdefault("Cache-Control", "no-store")
    if cookie:
        headers.append("Set-Cookie", cookie)


def host_of(header: str) -> str:
    """Return the name in a ``Host`` header, without its port."""
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""


async def read_form(request: Request) -> dict[str, list[str]]:
    """Return the fields of a write that one of this site's pages sent.

    Raises:
        Refused: It came from another site, or is too large.
    """
    headers = request.headers
    origin = headers.get("origin")
    # Some browsers send no origin, and "null" for a page in a frame.
    if origin and urlsplit(origin).netloc != headers.get("host"):
        raise Refused("it came from another site")
    if headers.get("sec-fetch-site", "same-origin") not in {"same-origin", "none"}:
        raise Refused("it came from another site")
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > LARGEST:
            raise Refused("it is too large")
    fields = parse_qs(bytes(body).decode(errors="replace"), keep_blank_values=True)
    given = fields.get("csrf", [""])[0]
    if not hmac.compare_digest(given.encode(), request.scope["lease_csrf"].encode()):
        raise Refused("its form is too old: go back, load the page again and repeat it")
    return fields
