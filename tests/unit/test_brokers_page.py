"""The page on brokers says what the drivers say of themselves."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from celery_lease.brokers import DRIVERS

PAGE = Path(__file__).parents[2] / "docs" / "brokers.md"
#: What is not there in every environment that has this package.
EXTRAS = {"sqs": "boto3", "pgmq": "kombu.transport.pgmq"}
HERE = [name for name in DRIVERS if name not in EXTRAS or find_spec(EXTRAS[name])]


def table() -> tuple[list[str], dict[str, list[str]]]:
    """Return the names of the capabilities, and each driver's cells by its name."""
    lines = [line.strip("| ") for line in PAGE.read_text().splitlines() if line.startswith("|")]
    head, _, *rows = [[cell.strip() for cell in line.split("|")] for line in lines]
    names = [name.replace(" ", "_") for name in head[2:]]
    return names, {row[1].strip("`"): row[2:] for row in rows if len(row) == len(head)}


def test_each_driver_has_a_row_and_no_other_does() -> None:
    """Also one whose client library is not installed here."""
    assert set(table()[1]) == set(DRIVERS)


@pytest.mark.parametrize("name", HERE)
def test_a_driver_can_what_the_page_says(name: str) -> None:
    """Every capability is a column, and every cell is the driver's own word."""
    driver: Any = import_module(f"{DRIVERS[name]}.driver")
    (cls,) = {
        each
        for each in vars(driver).values()
        if isinstance(each, type)
        and hasattr(each, "capabilities")
        and each.__module__ == driver.__name__
    }
    names, rows = table()
    assert set(names) == set(cls.capabilities.__dataclass_fields__)
    words = {True: "yes", False: "no"}
    for column, cell in zip(names, rows[name], strict=True):
        value = getattr(cls.capabilities, column)
        assert cell == (words[value] if isinstance(value, bool) else f"{value:g}"), column
