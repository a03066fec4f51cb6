"""The site of the documentation in a browser, as it is read on a telephone."""

from __future__ import annotations

import functools
import http.server
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.page import browsing, chromium

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Page

ROOT = Path(__file__).parents[2]
pytest.importorskip("playwright.sync_api", reason="playwright is not installed")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of the built site."""
    pytest.importorskip("material", reason="mkdocs-material is not installed")
    directory = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(directory)]
    subprocess.run(command, cwd=ROOT, check=True)
    return directory


@pytest.fixture
def telephone() -> Iterator[Page]:
    """Return a narrow window."""
    program = chromium() or pytest.skip("chromium is not installed")
    with browsing(program) as browser:
        yield browser.new_page(viewport={"width": 390, "height": 844})


def test_a_reader_chooses_the_version(site: Path, telephone: Page, tmp_path: Path) -> None:
    """As it is published: a directory for each, and a list of them."""
    for name in ("dev", "latest"):
        (tmp_path / name).symlink_to(site)
    versions = [{"version": "dev", "title": "dev", "aliases": []}]
    versions += [{"version": "1.2", "title": "1.2", "aliases": ["latest"]}]
    (tmp_path / "versions.json").write_text(json.dumps(versions))
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        telephone.goto(f"http://127.0.0.1:{server.server_port}/latest/settings/")
        telephone.wait_for_selector(".md-version__current")
        assert telephone.locator(".md-version__current").text_content() == "1.2"
        links = telephone.locator(".md-version__link")
        assert [each.strip() for each in links.all_text_contents()] == ["dev", "1.2"]
        server.shutdown()


def test_no_page_scrolls_sideways(site: Path, telephone: Page) -> None:
    """Wide tables and code scroll by themselves."""
    pages = sorted(site.glob("*/index.html"))
    assert len(pages) >= len([*(ROOT / "docs").glob("*.md")]) - 1
    wide = {}
    for each in (site / "index.html", *pages):
        telephone.goto(each.as_uri(), wait_until="domcontentloaded")
        width = telephone.evaluate("document.documentElement.scrollWidth")
        if width > 390:
            wide[each.parent.name] = width
    assert wide == {}
