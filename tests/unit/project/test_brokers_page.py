"""The page on brokers says what the drivers say of themselves."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from celery_lease.brokers import driver_class, drivers
from harness.places import ABILITIES

PAGE = Path(__file__).parents[3] / "docs" / "brokers.md"
#: What is not there in every environment that has this package.
EXTRAS = {"sqs": "boto3", "pgmq": "kombu.transport.pgmq"}
DRIVERS = drivers()
HERE = [name for name in DRIVERS if name not in EXTRAS or find_spec(EXTRAS[name])]


def table() -> tuple[list[str], dict[str, list[str]]]:
    """Return the names of the capabilities, and each driver's cells by its name."""
    lines = [line.strip("| ") for line in PAGE.read_text().splitlines() if line.startswith("|")]
    head, _, *rows = [[cell.strip() for cell in line.split("|")] for line in lines]
    names = [name.replace(" ", "_") for name in head[2:]]
    return names, {row[1].strip("`"): row[2:] for row in rows if len(row) == len(head)}


LINK = re.compile(r'\[([^\]]+)\]\(\.\./((?:tests|src)/[\w/]+\.py) "(\w+)"\)')


def guarantees() -> dict[str, list[str]]:
    """Return the cells of what holds where, by row; one for each broker."""
    text = PAGE.read_text().partition("## What holds where")[2].partition("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    rows = [line.removesuffix(" |").removeprefix("| ").split(" | ") for line in lines[2:]]
    return {row[0]: row[1:] for row in rows}


CELLS = [(row, cell) for row, cells in guarantees().items() for cell in cells]


def test_what_holds_is_said_of_every_broker() -> None:
    """Of all that are more than for tests."""
    assert {len(cells) for cells in guarantees().values()} == {len(DRIVERS) - 1}
    assert len(guarantees()) > 10


@pytest.mark.parametrize(("row", "cell"), CELLS)
def test_every_cell_leads_to_a_test(row: str, cell: str) -> None:
    """Which exists where the cell says, and is the whole of what it says."""
    match = LINK.fullmatch(cell)
    assert match is not None, f"{row}: {cell}"
    _, path, name = match.groups()
    assert f"def {name}(" in (PAGE.parents[1] / path).read_text()


def test_a_cell_leads_to_no_test_that_its_broker_is_left_out_of() -> None:
    """The tests for every broker are made for those that have the abilities."""
    source = (PAGE.parents[1] / "tests/integration/test_every_broker.py").read_text()
    found = re.findall(r"@able\((.*)\)\ndef (\w+)", source)
    needs = {name: set(re.findall(r"\w+", words)) for words, name in found}
    assert any(needs.values())
    places = ["valkey", "sqs", "pgmq", "rabbitmq quorum"]
    for cells in guarantees().values():
        for place, cell in zip(places, cells, strict=True):
            match = LINK.fullmatch(cell)
            assert match is not None
            assert needs.get(match[3], set()) <= ABILITIES[place], (place, cell)


def test_each_driver_has_a_row_and_no_other_does() -> None:
    """Also one whose client library is not installed here."""
    assert set(table()[1]) == set(DRIVERS)


@pytest.mark.parametrize("name", HERE)
def test_a_driver_can_what_the_page_says(name: str) -> None:
    """Every capability is a column, and every cell is the driver's own word."""
    capabilities = driver_class(name).capabilities
    names, rows = table()
    assert set(names) == set(capabilities.__dataclass_fields__)
    words = {True: "yes", False: "no"}
    for column, cell in zip(names, rows[name], strict=True):
        value = getattr(capabilities, column)
        assert cell == (words[value] if isinstance(value, bool) else f"{value:g}"), column
