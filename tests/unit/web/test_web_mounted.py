"""The examples of docs/web.md: the page within other applications."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
from starlette.testclient import TestClient

from unit.web_pages import ADDRESS, Still, lease

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import ASGIApp

TEXT = (Path(__file__).parents[3] / "docs" / "web.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
TOKEN = "a-token-of-some-length"  # noqa: S105  (a test's)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], dict[str, Any]]:
    """Runs an example in a project with one lease; no broker."""
    watch = Still([lease()])
    celery, secrets = map(ModuleType, ("proj.celery", "proj.secrets"))
    celery.app = watch.app  # type: ignore[attr-defined]
    secrets.TOKEN = TOKEN  # type: ignore[attr-defined]
    for module in (ModuleType("proj"), celery, secrets):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr("celery_lease.web.app.PageWatch", lambda _: watch)

    def ran(block: str) -> dict[str, Any]:
        names: dict[str, Any] = {}
        exec(block, names)  # noqa: S102  (our own page)
        return names

    return ran


class Signed:
    """A middleware that knows who it is."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        user = type("User", (), {"display_name": "ada"})
        await self.app({**scope, "user": user}, receive, send)


@pytest.mark.parametrize(("number", "name"), [(0, "api"), (1, "site")])
def test_the_page_is_mounted_as_the_docs_say(
    run: Callable[[str], dict[str, Any]], number: int, name: str
) -> None:
    """Under its prefix, for those who may, by the name that was given alone."""
    app = run(BLOCKS[number])[name]
    browser = TestClient(Signed(app), base_url="https://ops.example.com")
    headers = {} if name == "site" else {"Authorization": f"Bearer {TOKEN}"}
    shown = browser.get("/leases/", headers=headers)
    assert shown.status_code == 200
    assert "video.transcode" in shown.text
    links = set(ADDRESS.findall(shown.text)) - {""}
    assert {link for link in links if not link.startswith("/leases/")} == set()
    if name != "site":
        assert browser.get("/leases/").status_code == 401
    other = TestClient(Signed(app), base_url="https://evil.example")
    assert other.get("/leases/", headers=headers).status_code == 400


def test_there_is_an_example_for_each() -> None:
    """And no further one that no test runs."""
    assert len(BLOCKS) == 2
