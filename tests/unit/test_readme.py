"""What the README shows is true of the code."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import celery_lease

README = Path(__file__).parents[2] / "README.md"
TEXT = README.read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_examples_are_python_and_import_what_exists(block: str) -> None:
    """A renamed class is noticed."""
    for node in ast.walk(ast.parse(block)):
        if isinstance(node, ast.ImportFrom) and node.module == "celery_lease":
            assert {name.name for name in node.names} <= set(celery_lease.__all__)


def test_every_public_name_is_mentioned_somewhere_in_the_docs() -> None:
    """A new public name needs a line."""
    docs = TEXT + "".join(path.read_text() for path in (README.parent / "docs").rglob("*.md"))
    assert [name for name in celery_lease.__all__ if name not in docs] == []


def test_pictures_and_pages_that_it_links_exist() -> None:
    """No dead link within the repository."""
    links = re.findall(r"\]\((?!https?:)([^)#]+)", TEXT)
    assert [link for link in links if not (README.parent / link).exists()] == []
