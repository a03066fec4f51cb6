"""What the README shows is true of the code."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import celery_lease
from celery_lease import settings
from celery_lease.settings import SETTINGS

README = Path(__file__).parents[3] / "README.md"
TEXT = README.read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_examples_are_python_and_import_what_exists(block: str) -> None:
    """A renamed class is noticed."""
    for node in ast.walk(ast.parse(block)):
        if isinstance(node, ast.ImportFrom) and node.module == "celery_lease":
            assert {name.name for name in node.names} <= set(celery_lease.__all__)


def test_it_is_short() -> None:
    """What a reader wants to know first; the pages have the rest."""
    assert len(TEXT.splitlines()) <= 150


def test_every_public_name_is_mentioned_somewhere_in_the_docs() -> None:
    """A new public name needs a line."""
    docs = TEXT + "".join(path.read_text() for path in (README.parent / "docs").rglob("*.md"))
    assert [name for name in celery_lease.__all__ if name not in docs] == []


def test_pictures_and_pages_that_it_links_exist() -> None:
    """No dead link within the repository."""
    links = re.findall(r"\]\((?!https?:)([^)#]+)", TEXT)
    assert [link for link in links if not (README.parent / link).exists()] == []


def test_it_names_the_settings_that_a_call_takes_and_those_that_follow() -> None:
    """As the table of settings has them; "most" of them are options of a task."""
    section = " ".join(TEXT.split("### Settings\n")[1].split("\n#")[0].split())
    called = re.findall(r"`(lease_\w+)`", section.split("these: ")[1].split(". ")[0])
    assert set(called) == {each.name for each in SETTINGS if each.call}
    assert sum(each.task for each in SETTINGS) > len(SETTINGS) / 2
    following = re.findall(r"`lease_(\w+)`", section.split("(300). ")[1].split(" follow ")[0])
    short, usual = settings.load({"lease_extension": 6}), settings.load({})
    moved = {each for each in usual.policy.__slots__ if _of(short, each) != _of(usual, each)}
    moved |= {"reaper_interval"} if short.reaper_interval != usual.reaper_interval else set()
    assert set(following) == moved - {"extension"}


def _of(loaded: settings.Settings, name: str) -> object:
    return getattr(loaded.policy, name)
