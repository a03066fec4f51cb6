"""The commands and the outputs that pages show are those of this version."""

from __future__ import annotations

import re
import shlex
import tomllib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from celery.bin.celery import celery

from celery_lease.cli.rows import HEADERS
from unit.project.test_docs import blocks

ROOT = Path(__file__).parents[3]
PAGES = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md"]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
#: Programs of others, whose arguments are not checked.
OTHERS = {"uvicorn", "curl", "kubectl", "grep"}
#: What only a project of the reader's has.
THEIRS = {"manage.py"}
OPERATOR = re.compile(r"^(?:&&|\||&)$")
REDIRECTION = re.compile(r">> \S+")


def commands(page: Path) -> list[list[str]]:
    """Return the commands of a page, word by word; of blocks with prompts the lines with one."""
    found: list[list[str]] = []
    text = page.read_text()
    for block in [*blocks(text, "console"), *blocks(text, "sh")]:
        lines = block.splitlines()
        prompted = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        for line in prompted or lines:
            found.append([])
            for word in shlex.split(REDIRECTION.sub("", line), comments=True):
                if OPERATOR.match(word):
                    found.append([])
                else:
                    found[-1].append(word)
    return [each for each in found if each]


COMMANDS = [(page.stem, each) for page in PAGES for each in commands(page)]


@pytest.mark.parametrize(
    "words",
    [words for _, words in COMMANDS],
    ids=[f"{page}-{' '.join(words)}" for page, words in COMMANDS],
)
def test_commands_are_there(words: list[str]) -> None:
    """Celery's with their options, modules of this repository, and extras of the package."""
    program = Path(words[0]).name
    if program == "celery":
        assert words[1] == "-A"
        _check(celery, words[3:])
    elif program == "pip":
        for each in words:
            for extra in re.findall(r"\[(.+)\]$", each):
                assert set(extra.split(",")) <= EXTRAS.keys()
    elif program in {"python", "python3"}:
        if words[1] == "-m":
            path = ROOT / words[2].replace(".", "/")
            ours = path.is_dir() or path.with_suffix(".py").exists()
            assert ours or find_spec(words[2]), words
        else:
            assert (ROOT / words[1]).exists() or words[1] in THEIRS, words
    else:
        assert program in OTHERS, words


def _check(command: Any, words: list[str]) -> None:
    """Follow the words to a command, and look up their options in it."""
    while words and words[0] in getattr(command, "commands", {}):
        command, words = command.commands[words[0]], words[1:]
    assert not words or not getattr(command, "commands", {}), words
    known = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
    given = {re.split(r"=", each)[0] for each in words if re.match(r"--?[a-z]", each)}
    assert given <= known, (command.name, given - known)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_tables_of_leases_have_the_columns_of_today(page: Path) -> None:
    """All of them, in their order."""
    heads = [line.split() for line in page.read_text().splitlines() if line.startswith("TASK ")]
    assert [head for head in heads if head != list(HEADERS)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_toml_and_sql_are_those_of_the_code(page: Path) -> None:
    """An entry point is that of the example; a table is the one that a worker makes."""
    example = (ROOT / "examples" / "third_party_broker" / "pyproject.toml").read_text()
    for block in blocks(page.read_text(), "toml"):
        assert tomllib.loads(block)["project"]["entry-points"]
        assert block.strip() in example
    if page.stem == "pgmq":
        from celery_lease.brokers.pgmq import checkpoint, key_statements

        said = " ".join(" ".join(blocks(page.read_text(), "sql")).replace(";", " ").split())
        for module in (checkpoint, key_statements):
            for statement in (*module.CREATE.split(";"), f"{module.GRANT} worker"):
                assert " ".join(statement.split()) in said
