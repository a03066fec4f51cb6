"""Passes a request of Django to an ASGI app, and its answer back, under WSGI and ASGI.

The answer is collected before it is passed back, so it must not be endless.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from asgiref.sync import async_to_sync
from django.http import HttpResponse

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.types import ASGIApp, Message, Scope

#: The scope's key for the name of Django's user.
USER = "django_user"


def answer_of(app: ASGIApp, request: Any, rest: str) -> Any:
    """Return the answer of an app that is mounted at *request*'s path without *rest*.

    Raises:
        DisallowedHost: ``ALLOWED_HOSTS`` does not have the host.
    """
    return async_to_sync(_answer)(app, _scope(request, rest), request.body)


async def _answer(app: ASGIApp, scope: Scope, body: bytes) -> Any:
    asked: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
    answer = HttpResponse()

    async def receive() -> Message:
        return asked.pop() if asked else {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            answer.write(message.get("body", b""))
            return
        answer.status_code = message["status"]
        for name, value in message["headers"]:
            if name.lower() == b"set-cookie":
                answer.cookies.load(value.decode("latin-1"))
            else:
                answer[name.decode("latin-1")] = value.decode("latin-1")

    await app(scope, receive, send)
    return answer


def _scope(request: Any, rest: str) -> Scope:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": request.scheme,
        "path": request.path,
        "root_path": request.path.removesuffix(rest).rstrip("/"),
        "query_string": request.META.get("QUERY_STRING", "").encode("latin-1", "replace"),
        "headers": list(_headers(request)),
        "client": (request.META.get("REMOTE_ADDR", ""), 0),
        USER: request.user.get_username(),
    }


def _headers(request: Any) -> Iterator[tuple[bytes, bytes]]:
    """Yield the headers, with the host as Django knows it behind a proxy."""
    yield b"host", request.get_host().encode("latin-1")
    for name, value in request.headers.items():
        if name != "Host":
            yield name.lower().encode("latin-1"), value.encode("latin-1", "replace")
