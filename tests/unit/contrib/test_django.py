"""Leases in a Django project: the page for its staff, the checks, and ``manage.py lease``."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import pytest
from celery import Celery

from celery_lease import LeasedTask
from celery_lease.cli.doctor import examine
from celery_lease.web.guard import COOKIE, HEADERS
from celery_lease.web.watch import PageWatch
from celery_lease.web.writes import WRITES
from unit.web_pages import Still, lease

django = pytest.importorskip("django", reason="Django is not installed")

from django.urls import path  # noqa: E402

from celery_lease.contrib.django import checks  # noqa: E402
from celery_lease.contrib.django.urls import lease_urls  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

ROOT = Path(__file__).parents[3]
PAGE = "/leases/"


@pytest.fixture(scope="module", autouse=True)
def project() -> Iterator[None]:
    """The example project, with a database of its own in memory and three users."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DJANGO_SETTINGS_MODULE", "examples.django_app.settings")
        django.setup()
        from django.test.runner import DiscoverRunner
        from examples.django_app.celery import app

        # Now, as each test hides other modules' shared tasks: later tests need these.
        app.loader.import_default_modules()
        app.finalize()

        runner = DiscoverRunner(verbosity=0, interactive=False)
        databases = runner.setup_databases()
        from django.contrib.auth.models import User

        User.objects.create_user("ada")
        User.objects.create_user("bob", is_staff=True)
        User.objects.create_superuser("eve")
        yield
        runner.teardown_databases(databases)


@pytest.fixture
def browser(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Makes a browser of the project in which a user is logged in; there is one lease."""
    from django.contrib.auth.models import User
    from django.test import Client

    look = Still([lease()]).latest
    monkeypatch.setattr(PageWatch, "current", lambda _: look)

    def browser(name: str = "") -> Any:
        made = Client(HTTP_HOST="127.0.0.1")
        if name:
            made.force_login(User.objects.get(username=name))
        return made

    return browser


def text(answer: Any) -> str:
    """Return an answer's HTML; Django has a word for it since 5.2."""
    return str(answer.content.decode())


def test_staff_sees_the_page(browser: Callable[..., Any]) -> None:
    """With the page's own policy, its files, links below its place, and news that end."""
    bob = browser("bob")
    shown = bob.get(PAGE)
    assert shown.status_code == 200
    assert "video.transcode" in text(shown)
    assert {name: shown.headers[name] for name in HEADERS} == HEADERS
    assert f'href="{PAGE}timeline"' in text(shown)
    assert bob.get(f"{PAGE}static/lease.css").headers["Content-Type"].startswith("text/css")
    assert bob.get(f"{PAGE}board.json?q=transcode").json()["leases"][0]["task"] == "video.transcode"
    assert bob.get(f"{PAGE}nowhere").status_code == 404
    news = bob.get(f"{PAGE}news")
    assert (news.headers["Content-Type"], news.content[:6]) == ("text/event-stream", b"retry:")


@pytest.mark.parametrize("rest", ["", "board.json", "static/lease.css", "news", "do/cancel"])
def test_nobody_else_does(browser: Callable[..., Any], rest: str) -> None:
    """Who is not logged in may do that; who is no staff, and a script, is refused."""
    sent = browser().get(PAGE + rest)
    place = f"/admin/login/?{urlencode({'next': PAGE + rest})}"
    assert (sent.status_code, sent.headers["Location"]) == (302, place)
    assert browser("ada").get(PAGE + rest).status_code == 403
    assert browser().get(PAGE + rest, headers={"HX-Request": "true"}).status_code == 403
    assert browser().post(PAGE + rest).status_code == 403


def test_without_an_admin_login_url_is_used(browser: Callable[..., Any]) -> None:
    """Also the page needs no admin."""
    from django.test import override_settings

    urls = ModuleType("project_urls")
    vars(urls)["urlpatterns"] = [path("leases/", lease_urls())]
    with override_settings(ROOT_URLCONF=urls, LOGIN_URL="/in/"):
        sent = browser().get(PAGE)
        assert sent.headers["Location"] == "/in/?next=%2Fleases%2F"
        assert browser("bob").get(PAGE).status_code == 200


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[str]]:
    """The tasks that were cancelled: none really."""
    seen: list[Sequence[str]] = []

    def act(_site: Any, names: Sequence[str], _every: object) -> list[tuple[str, bool]]:
        seen.append(names)
        return [(f"{name} was told", True) for name in names]

    write = next(each for each in WRITES if each.name == "cancel")
    monkeypatch.setattr("celery_lease.web.app.WRITES", [replace(write, act=act)])
    return seen


def test_who_may_change_something_does_it_by_the_page_s_own_forms(
    browser: Callable[..., Any], done: list[Sequence[str]], caplog: pytest.LogCaptureFixture
) -> None:
    """By default superusers; other staff has no buttons and no such route. Who did it is logged."""
    from django.test import override_settings

    urls = ModuleType("project_urls")
    vars(urls)["urlpatterns"] = [
        path("leases/", lease_urls()),
        path("bobs/", lease_urls(may_change=lambda user: user.username == "bob" and "yes")),
    ]
    with override_settings(ROOT_URLCONF=urls):
        eve, bob = browser("eve"), browser("bob")
        token = re.search(r'name="csrf" value="(\w+)"', text(eve.get(f"{PAGE}task?id=id-00000")))
        assert token
        form = {"csrf": token[1], "id": "id-00000", "confirmed": "1"}

        def send(made: Any, fields: dict[str, str], place: str = PAGE, **headers: str) -> int:
            kind, there = "application/x-www-form-urlencoded", f"{place}do/cancel"
            sent = {name.replace("_", "-"): value for name, value in headers.items()}
            answer = made.post(there, urlencode(fields), content_type=kind, headers=sent)
            return int(answer.status_code)

        assert f'action="{PAGE}do/cancel"' not in text(bob.get(f"{PAGE}task?id=id-00000"))
        assert send(eve, {**form, "csrf": "0" * 64}) == 403
        assert send(eve, form, Origin="http://evil.example") == 403
        assert send(eve, form, Sec_Fetch_Site="cross-site") == 403
        bob.cookies[COOKIE] = eve.cookies[COOKIE].value
        assert send(bob, form) == 404
        assert done == []
        assert send(eve, form, Origin="http://127.0.0.1", Sec_Fetch_Site="same-origin") == 200
        assert "cancel by eve from 127.0.0.1: id-00000 was told" in caplog.text
        assert send(bob, form, "/bobs/") == 200
        assert done == [["id-00000"]] * 2


def test_a_name_that_django_does_not_know_is_refused(browser: Callable[..., Any]) -> None:
    """ALLOWED_HOSTS keeps DNS rebinding away, as everywhere."""
    from django.test import override_settings

    with override_settings(ALLOWED_HOSTS=["127.0.0.1"], DEBUG=False):
        assert browser("eve").get(PAGE).status_code == 200
        assert browser("eve").get(PAGE, HTTP_HOST="evil.example").status_code == 400


def test_the_page_is_shown_under_asgi_too(browser: Callable[..., Any]) -> None:
    """Within the loop that serves everything."""
    from django.test import AsyncClient

    async def shown() -> Any:
        made = AsyncClient(headers={"host": "127.0.0.1"})
        made.cookies = browser_of_bob.cookies
        return await made.get(PAGE)

    browser_of_bob = browser("bob")
    answer = asyncio.run(shown())
    assert answer.status_code == 200
    assert "video.transcode" in text(answer)


def test_the_admin_links_to_the_page_where_there_is_one(browser: Callable[..., Any]) -> None:
    """On all of its pages, beside what else is there."""
    from django.contrib import admin
    from django.test import override_settings

    link = f'<a href="{PAGE}">Leases</a>'
    shown = browser("bob").get("/admin/")
    assert link in text(shown)
    assert "Log out" in text(shown)
    assert link not in text(browser().get("/admin/login/"))
    urls = ModuleType("project_urls")
    vars(urls)["urlpatterns"] = [path("admin/", admin.site.urls)]
    with override_settings(ROOT_URLCONF=urls):
        assert "Leases" not in text(browser("bob").get("/admin/"))


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> Celery:
    """The current app, with one task."""
    made = Celery("proj", broker="memory://", backend="cache+memory://", set_as_current=False)

    @made.task(base=LeasedTask, name="t.silent", shared=False)
    def silent() -> None: ...

    monkeypatch.setattr(checks, "app_or_default", lambda: made)
    return made


def ids() -> list[str]:
    """Return the ids of what the checks find."""
    return sorted({each.id for each in checks.check_leases(None)})


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"lease_mode": "daemon"}, []),
        ({}, ["W009"]),
        ({"lease_interval": 200}, ["E001"]),
        ({"lease_mode": "daemon", "lease_interval": 120}, ["W002"]),
        ({"lease_mode": "daemon", "lease_enabled": False}, ["W003"]),
        ({"lease_mode": "daemon", "result_backend": "disabled"}, ["I005"]),
        ({"lease_mode": "daemon", "worker_prefetch_multiplier": 0}, ["W007"]),
        ({"lease_mode": "daemon", "imports": ["no.such.module"]}, ["W010"]),
        ({"broker_url": "nothing://u:secret@h"}, ["E012"]),
        ({"broker_url": "redis://u:se/cret@h"}, ["E012"]),
    ],
)
def test_checks_are_the_doctor_s(app: Celery, settings: dict[str, Any], found: list[str]) -> None:
    """Each with its id, and a hint; no password."""
    app.conf.update(settings)
    assert ids() == [f"celery_lease.{each}" for each in found]
    for each in checks.check_leases(None):
        assert each.hint[0].isupper(), each.hint
        assert "cret" not in f"{each.msg}{each.hint}"


def test_a_project_whose_app_nobody_imported_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tasks would be sent to a broker of the defaults."""
    bare = Celery("default", loader="default", set_as_current=False)
    monkeypatch.setattr(checks, "app_or_default", lambda: bare)
    assert ids() == ["celery_lease.W011"]


def test_ids_are_those_of_the_docs_and_cover_the_doctor_s_checks() -> None:
    """A check without a number would end ``manage.py`` with a traceback."""
    page = (ROOT / "docs" / "django.md").read_text()
    listed = set(re.findall(r"\| `celery_lease\.[IWE/]+(\d+)` \|", page))
    assert listed == {f"{number:03}" for number in checks.NUMBERS.values()}
    home = Path(examine.__file__).parent
    code = "".join((home / f"{name}.py").read_text() for name in ("settings", "tasks"))
    named = set(re.findall(r'"((?:settings|tasks)\.\w+)"', code))
    assert named - checks.NUMBERS.keys() == {"settings.rules", "tasks.slow"}


@pytest.mark.usefixtures("app")
def test_checks_of_another_app_do_not_look_here() -> None:
    """``manage.py check videos``."""
    from django.apps import apps

    assert checks.check_leases([apps.get_app_config("videos")]) == []
    assert checks.check_leases([apps.get_app_config("celery_lease")]) != []


def test_manage_py_check_ends_with_what_a_worker_would_not_start_with(tmp_path: Path) -> None:
    """The tasks of the project are found, and each wrong setting by its name in ``settings.py``."""
    wrong = "from examples.django_app.settings import *\nCELERY_LEASE_INTERVAL = 100\n"
    (tmp_path / "wrong.py").write_text(wrong)
    ran = subprocess.run(
        [sys.executable, "-m", "examples.django_app.manage", "check", "--settings", "wrong"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 1
    assert "(celery_lease.E001) the app: CELERY_LEASE_INTERVAL = 100: must be less" in ran.stderr
    assert "1 issue" in ran.stderr


def test_manage_py_lease_runs_the_commands(
    app: Celery, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the project's app, and ends as they end."""
    from django.core.management import call_command

    from celery_lease.contrib.django.management.commands import lease as command

    monkeypatch.setattr(command, "app_or_default", lambda: app)
    with pytest.raises(SystemExit) as ended:
        call_command("lease", "doctor", "--json", "--strict", "--timeout", "0.1")
    assert ended.value.code == 1
    assert json.loads(capsys.readouterr().out)["app"] == "proj"
    call_command("lease", "status", "--help")
    assert "Usage: manage.py lease status" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        call_command("lease", "group", "-w", "a=")
    assert ended.value.code == 2


def test_the_package_needs_no_django() -> None:
    """Nor do its commands."""
    program = """
import sys
sys.modules["django"] = None
import celery_lease, celery_lease.cli, celery_lease.cli.doctor.examine
print(celery_lease.leased_task.__name__)
"""
    env = {name: value for name, value in os.environ.items() if not name.startswith("DJANGO")}
    subprocess.run([sys.executable, "-c", program], env=env, timeout=120, check=True)
