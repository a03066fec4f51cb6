"""The log lines and the outputs that pages print are made of texts of the code."""

from __future__ import annotations

import ast
import json
import re
import textwrap
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import celery_lease
from unit.project.test_docs import PLACEHOLDER, blocks

ROOT = Path(__file__).parents[3]
PAGES = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md"]
#: Lines that are no output: the formulas, a user's own, and those of Python's own dumps.
OTHERS = re.compile(
    r"grace period > |preStop \+ |consumer_timeout = |.*\bitem \d|Current thread |  File \"|TASK "
    r"|ACL SETUSER |pytest "
)
#: A block, with its language.
FENCED = re.compile(r"^( *)```(\w*)\n(.*?)^\1```", re.DOTALL | re.MULTILINE)
#: What a log line of Celery, and an error, begins with.
HEAD = re.compile(r"^(\[[^]]*: [A-Z]+/\w+\]|AssertionError:) ")
#: Names, numbers, times, addresses, signals and documents, which differ from project to project.
VARIABLE = re.compile(r"\{\".*\}|\S*[\d@\[…/]\S*|\b\w+\.\w[\w.]*|\bSIG[A-Z]+")
#: Further names of the projects on the pages: queues, notes, functions of the kernel.
NAMES = {"celery", "video", "import", "film", "chunk", "store", "do_poll"}


@cache
def templates() -> list[list[str]]:
    """Return the texts in the code, each cut at its placeholders; docstrings are none."""
    found: set[tuple[str, ...]] = set()
    package, project = Path(celery_lease.__file__).parent, ROOT / "example_project"
    for path in [*package.rglob("*.py"), *project.rglob("*.py")]:
        tree = ast.parse(path.read_text())
        docs = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                parts = [getattr(each, "value", "\0") for each in node.values]
                text = "".join(each if isinstance(each, str) else "\0" for each in parts)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                text = "" if node in docs else node.value
            else:
                continue
            text = re.sub(r"\{\w*\}", "\0", PLACEHOLDER.sub("\0", text))
            found.add(tuple(filter(None, (each.strip() for each in text.split("\0")))))
    return [list(each) for each in found if each]


@cache
def patterns() -> list[tuple[str, re.Pattern[str]]]:
    """Return the texts of several words: one piece to look for first, and where all must be."""
    found = []
    for pieces in templates():
        if len(re.findall(r"[a-z]{2,}", " ".join(pieces))) > 1:
            whole = (re.sub(r"^(?=\w)|(?<=\w)$", r"\\b", re.escape(each)) for each in pieces)
            where = ".*?".join(f"({each})" for each in whole)
            found.append((max(pieces, key=len), re.compile(where)))
    return found


def uncovered(line: str) -> set[str]:
    """Return the words of a line that come from no text of the code."""
    left = list(VARIABLE.sub(lambda found: "\0" * len(found[0]), line))
    for longest, pattern in patterns():
        if longest in line and (match := pattern.search(line)):
            for number in range(1, pattern.groups + 1):
                start, end = match.span(number)
                left[start:end] = "\0" * (end - start)
    words = set(re.findall(r"[A-Za-z_]{2,}", "".join(left)))
    whole = {each[0].strip(" :") for each in templates() if len(each) == 1}
    return {each for each in words - NAMES if not {each, each.removesuffix("s")} & whole}


def printed(page: Path) -> list[str]:
    """Return the lines of a page's outputs."""
    lines: list[str] = []
    for _, language, block in FENCED.findall(page.read_text()):
        shown = textwrap.dedent(block).splitlines()
        if language == "console" and shown[0].startswith("$ "):
            lines += [line for line in shown if not line.startswith("$ ")]
        elif language in {"", "text"}:
            lines += shown
    return [HEAD.sub("", line) for line in lines if line and not OTHERS.match(line)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_printed_lines_are_made_of_texts_of_the_code(page: Path) -> None:
    """Whoever changes a text meets the page that shows it."""
    strange = {line: uncovered(line) for line in printed(page)}
    assert {line: words for line, words in strange.items() if words} == {}


def keys(value: Any) -> set[str]:
    """Return the keys of a JSON document, at any depth."""
    return set(value).union(*map(keys, value.values())) if isinstance(value, dict) else set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_keys_of_printed_documents_are_those_of_the_code(page: Path) -> None:
    """The documents of commands, and the states that tasks publish."""
    whole = {each[0] for each in templates() if len(each) == 1}
    for block in blocks(page.read_text(), "json"):
        assert keys(json.loads(block)) - whole == set()


def test_a_word_that_the_code_does_not_have_is_noticed() -> None:
    """The check itself: words between placeholders count, variable ones do not."""
    line = "task 0a7088c5-851a is handed over"
    assert uncovered(line) == set()
    assert uncovered(line.replace("handed over", "passed over")) == {"passed"}
