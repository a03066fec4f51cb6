"""The example project for Django in a browser: its log-in, its admin, and the page of leases."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.page import browsing, chromium, complaints
from harness.processes import LocalProcess
from harness.waiting import free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page

    from harness.brokers import RedisServer

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
TASK = "examples.django_app.videos.tasks.checksum"
PASSWORD = "for this test"  # noqa: S105
#: Bytes of a sparse file, which take minutes to read.
LARGE = 200 << 30

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytest.importorskip("django", reason="Django is not installed")
expect = playwright.expect


@dataclass
class Project:
    """The project with a database and a broker of its own, and its commands."""

    directory: Path
    env: dict[str, str]

    def manage(self, *arguments: str) -> LocalProcess:
        command = [sys.executable, "-m", "examples.django_app.manage", *arguments]
        return LocalProcess(command, self.directory / f"{arguments[0]}.log", env=self.env).start()

    def run(self, *arguments: str) -> None:
        done = self.manage(*arguments)
        assert done.wait(60) == 0, done.log

    def worker(self) -> LocalProcess:
        app = "examples.django_app.celery"
        command = [sys.executable, "-m", "celery", "-A", app, "worker"]
        command += ["-P", "threads", "-l", "INFO"]
        return LocalProcess(command, self.directory / "worker.log", env=self.env).start()


@pytest.fixture
def project(valkey: RedisServer, tmp_path: Path) -> Project:
    """A migrated database with a superuser, and a member of the staff."""
    (tmp_path / "here.py").write_text(
        "from examples.django_app.settings import *\n"
        f"CELERY_BROKER_URL = CELERY_RESULT_BACKEND = {valkey.fresh_url()!r}\n"
        f"DATABASES['default']['NAME'] = {str(tmp_path / 'db.sqlite3')!r}\n"
    )
    path = os.pathsep.join([str(tmp_path), str(ROOT), os.environ.get("PYTHONPATH", "")])
    made = Project(tmp_path, {"DJANGO_SETTINGS_MODULE": "here", "PYTHONPATH": path})
    made.run("migrate")
    users = (
        "from django.contrib.auth.models import User; "
        f"User.objects.create_superuser('eve', password={PASSWORD!r}); "
        f"User.objects.create_user('bob', password={PASSWORD!r}, is_staff=True)"
    )
    made.run("shell", "-c", users)
    return made


@pytest.fixture
def browser() -> Iterator[Browser]:
    """A browser."""
    with browsing(chromium() or pytest.skip("chromium is not installed")) as found:
        yield found


def log_in(page: Page, url: str, name: str) -> None:
    """Ask for the page of leases, and log in on the way."""
    page.goto(f"{url}/leases/")
    page.fill("#id_username", name)
    page.fill("#id_password", PASSWORD)
    page.get_by_role("button", name="Log in").click()
    page.wait_for_url(f"{url}/leases/")


def test_staff_sees_a_task_and_a_superuser_cancels_it(project: Project, browser: Browser) -> None:
    """By the link of the admin, without a reload; the log says who it was."""
    video = project.directory / "video"
    with video.open("wb") as file:
        file.truncate(LARGE)
    with project.worker() as worker:
        worker.wait_log("ready.")
        port = free_port()
        with project.manage("runserver", f"127.0.0.1:{port}", "--noreload") as server:
            server.wait_log(" development server at ")  # of WSGI, says Django 6
            url = f"http://127.0.0.1:{port}"
            wide = browser.new_page(viewport={"width": 1280, "height": 800})
            narrow = browser.new_page(viewport={"width": 390, "height": 844})
            log_in(wide, url, "eve")
            log_in(narrow, url, "bob")
            expect(wide.get_by_text("No lease is held.")).to_be_visible()
            sent = "from examples.django_app.videos.tasks import checksum as task; "
            project.run("shell", "-c", f"{sent}task.delay({str(video)!r})")
            for page in (wide, narrow):
                expect(page.locator("td.c-state")).to_have_text("running")
                assert complaints(page) == []
            narrow.locator(".c-id a").click()
            expect(narrow.get_by_text("Its last beat was")).to_be_visible()
            expect(narrow.get_by_role("button", name="Cancel")).to_have_count(0)
            wide.goto(f"{url}/admin/")
            wide.get_by_role("link", name="Leases").click()
            wide.locator(".c-id a").click()
            for said in ("raises TaskCancelled", "its next beat raises TaskCancelled"):
                wide.get_by_role("button", name=re.compile("^Cancel")).click()
                expect(wide.locator("main")).to_contain_text(said)
            wide.get_by_role("link", name="Back").click()
            expect(wide.get_by_text("No lease is held.")).to_be_visible()
            assert f"cancel by eve from 127.0.0.1: {TASK}[" in server.log
