"""One of a thing is written in the singular, wherever a number stands before it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import celery_lease
from celery_lease.core.words import counted, page

SOURCE = Path(celery_lease.__file__).parent
PLURALS = "bytes|deliveries|leases|letters|losses|messages|polls|queues|receives|tasks|times|tries"
NUMBER = re.compile(rf"%d (?:\w+ )?(?:{PLURALS})\b")


@pytest.mark.parametrize(
    ("number", "said"), [(0, "0 messages"), (1, "1 message"), (2, "2 messages")]
)
def test_numbers_of_things_are_words(number: int, said: str) -> None:
    """With a plural of its own where one is odd."""
    assert counted(number, "message") == said
    assert counted(1, "try", "tries") == "1 try"
    assert counted(2, "try", "tries") == "2 tries"


def test_no_text_of_the_log_has_a_plural_for_any_number() -> None:
    """``%d messages`` says "1 messages" one day."""
    texts = {
        node.value
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert {text for text in texts if NUMBER.search(text)} == set()


def test_every_page_that_a_text_names_can_be_read_by_whoever_installed_the_package() -> None:
    """By its address, and not as a file of the sources; and there is such a page."""
    calls = [
        node
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "page"
        and isinstance(node.args[0], ast.Constant)
    ]
    names = {str(ast.literal_eval(each.args[0])) for each in calls}
    assert "settings" in names
    docs = Path(__file__).parents[3] / "docs"
    assert {name for name in names if not (docs / f"{name}.md").exists()} == set()
    site = "https://celery-lease.github.io/celery-lease"
    assert page("settings") == f"{site}/latest/settings/"
