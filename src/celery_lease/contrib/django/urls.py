"""The page of leases among a project's URLs, for its staff.

Django decides who may use it, by the sessions, back ends and middleware of all other views.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery.app import app_or_default
from django.conf import settings
from django.core.exceptions import PermissionDenied
from django.http import HttpResponse
from django.shortcuts import redirect, resolve_url
from django.urls import NoReverseMatch, path, reverse
from django.utils.crypto import salted_hmac
from django.utils.http import urlencode
from django.views.decorators.csrf import csrf_exempt

from celery_lease.web import create_app
from celery_lease.web.watch import PageWatch

from .passing import USER, answer_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery import Celery

__all__ = ["lease_urls"]

NAMESPACE = "celery_lease"
#: Ends at once, and makes the browser return after 2000 milliseconds: no thread waits for news.
NEWS = "retry: 2000\nevent: look\ndata: 0\n\n"


def is_superuser(user: Any) -> bool:
    """Whether a user has all permissions."""
    return bool(user.is_superuser)


def lease_urls(
    celery_app: Celery | None = None,
    *,
    may_change: Callable[[Any], object] = is_superuser,
    show_args: bool = False,
) -> tuple[list[Any], str, str]:
    """Return the URLs of the page, for ``path`` under any prefix.

    Active staff users may see it. Anonymous users are sent to the log-in of the admin, or to
    ``LOGIN_URL`` without an admin; all others get 403.

    Args:
        celery_app: The app whose leases are shown. None: the project's app.
        may_change: Returns whether a staff user may cancel tasks, replay or discard dead letters,
            and drain workers. For others the page is read-only.
        show_args: Show the arguments of tasks.
    """
    app = app_or_default(celery_app)
    watch = PageWatch(app)  # it starts no thread before the first look
    pages = {
        changes: create_app(
            app,
            hosts=["*"],  # ALLOWED_HOSTS restricts them
            no_auth=True,
            user=lambda scope: str(scope[USER]),
            read_only=not changes,
            show_args=show_args,
            secret=salted_hmac(NAMESPACE, "page", algorithm="sha256").hexdigest(),
            watch=watch,
        )
        for changes in (False, True)
    }

    def page(request: Any, rest: str = "") -> Any:
        refusal = _refusal(request)
        if refusal is not None:
            return refusal
        if rest == "news":
            return HttpResponse(NEWS, content_type="text/event-stream")
        return answer_of(pages[bool(may_change(request.user))], request, rest)

    view = csrf_exempt(page)  # the page's own guard checks the origin and the token of its forms
    return [path("", view, name="page"), path("<path:rest>", view)], NAMESPACE, NAMESPACE


def _refusal(request: Any) -> Any:
    """Return a redirect to the log-in, or None if the user may see the page.

    Raises:
        PermissionDenied: The user may not, or it is a script's request, which cannot log in.
    """
    user = request.user
    if user.is_active and user.is_staff:
        return None
    by_script = request.method != "GET" or "HX-Request" in request.headers
    if user.is_authenticated or by_script:
        raise PermissionDenied
    query = urlencode({"next": request.get_full_path()})
    return redirect(f"{_login()}?{query}")


def _login() -> str:
    try:
        return str(reverse("admin:login"))
    except NoReverseMatch:
        return str(resolve_url(settings.LOGIN_URL))
