"""What is promised to users is listed, and says what it does."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import pytest

from celery_lease.settings import SETTINGS
from celery_lease.task.decorator import CallOptions, TaskOptions
from celery_lease.testing import plugin

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").rglob("*.md")]
#: What drivers of other brokers build on, and may change.
PROVISIONAL = {"celery_lease.testing.conformance", "celery_lease.testing.desk"}
#: Modules that users import from, as docs/promises.md lists them.
PUBLIC = re.findall(
    r"^\| `(celery_lease[\w.]*)` \|", (ROOT / "docs" / "promises.md").read_text(), re.MULTILINE
)


def members(module: str) -> Iterator[tuple[str, Any]]:
    """Yield the public names of a module, and what is public of their classes."""
    home = importlib.import_module(module)
    for name in home.__all__:
        value = getattr(home, name)
        yield name, value
        for each in vars(value) if inspect.isclass(value) else ():
            member = inspect.getattr_static(value, each)
            if not each.startswith("_") and (callable(member) or isinstance(member, property)):
                yield f"{name}.{each}", getattr(value, each)


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_says_what_it_does(module: str) -> None:
    """Classes and functions, and their methods and properties; an override inherits its text."""
    assert importlib.import_module(module).__doc__
    assert [name for name, value in members(module) if not inspect.getdoc(value)] == []


def test_fixtures_say_what_they_are() -> None:
    """As ``pytest --fixtures`` shows them."""
    fixtures = {name: value for name, value in vars(plugin).items() if "ixture" in str(type(value))}
    assert len(fixtures) > 5
    assert [name for name, value in fixtures.items() if not value.__doc__] == []


def imports(text: str) -> Iterator[tuple[str, str]]:
    """Yield the module and the name of each import from the package in a page's examples."""
    for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        for node in ast.walk(ast.parse(dedent(block))):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("celery_lease"):
                yield from ((str(node.module), each.name) for each in node.names)


def test_the_docs_import_nothing_that_is_not_promised() -> None:
    """Or the list of public names is not complete."""
    found = {each for page in PAGES for each in imports(page.read_text())}
    found = {(module, name) for module, name in found if module not in PROVISIONAL}
    assert len(found) > 10
    assert {module for module, _ in found} <= set(PUBLIC)
    for module, name in found - {(module, "*") for module in PUBLIC}:
        assert name in importlib.import_module(module).__all__


def test_options_are_typed_as_the_table_of_settings_has_them() -> None:
    """For the decorator and for calls."""
    assert {each.name for each in SETTINGS if each.call} == CallOptions.__optional_keys__
    ours = {name for name in TaskOptions.__optional_keys__ if name.startswith("lease_")}
    assert {each.name for each in SETTINGS if each.task} == ours
