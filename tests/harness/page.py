"""``celery lease web`` as a process, and Debian's Chromium to look at it."""

from __future__ import annotations

import os
import shutil
import sys
import urllib.request
from contextlib import contextmanager
from importlib import resources
from typing import TYPE_CHECKING, Any

from harness.processes import LocalProcess
from harness.waiting import eventually, free_port
from harness.workers import TESTS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, Page

    from harness.setup import Setup

#: Milliseconds that a page has to show what has happened.
PATIENCE = 40_000
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


class PageServer(LocalProcess):
    """A page of an app, on a free port."""

    def __init__(self, setup: Setup, module: str, directory: Path, *options: str) -> None:
        self.port = free_port()
        path = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))
        super().__init__(
            [
                *(sys.executable, "-m", "celery", "-A", module, "lease", "web"),
                *("--port", str(self.port), *options),
            ],
            directory / "page.log",
            env={**setup.env(), "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"},
        )

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self.port}"

    def get(self, path: str) -> bytes:
        """Return what it answers."""
        with urllib.request.urlopen(self.url + path, timeout=30) as answer:  # noqa: S310  (our own)
            return bytes(answer.read())

    def wait_up(self) -> PageServer:
        """Return once it answers."""
        self.wait_log(f"http://127.0.0.1:{self.port}/")
        eventually(lambda: self.get("/static/lease.css"), 30)
        return self


def chromium() -> str | None:
    """Return the installed browser, or None."""
    return shutil.which("chromium")


@contextmanager
def browsing(program: str) -> Iterator[Browser]:
    """Yield a browser."""
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=PATIENCE)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()


def complaints(page: Page) -> list[Any]:
    """Return what axe finds wrong with a page for those who do not see it, or use no mouse.

    Once its colours have changed: on their way they contrast less.
    """
    if page.evaluate("typeof axe") == "undefined":
        axe = resources.files("axe_playwright_python") / "axe.min.js"
        page.evaluate(axe.read_text(encoding="utf-8"))
    page.evaluate("Promise.allSettled(document.getAnimations().map(each => each.finished))")
    found: Any = page.evaluate(
        "() => axe.run(document, {resultTypes: ['violations']}).then(r => r.violations.map("
        "v => [v.id, v.nodes.map(n => n.html.slice(0, 200) + ' ' + n.failureSummary)]))"
    )
    return list(found)
