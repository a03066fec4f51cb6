"""One database of the session's server; its machines take turns. And which mutants a run hunts.

A plain run hunts the first mutant of each script, ``pytest tests/model -m mutants`` all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from harness.brokers import RedisServer


def pytest_configure(config: pytest.Config) -> None:
    """Name the marker; it is of no use anywhere else."""
    config.addinivalue_line("markers", "mutants: hunts broken scripts; only with -m mutants")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the long hunt out of a run that did not ask for it."""
    if "mutants" in str(config.getoption("-m")):
        return
    hunts = [item for item in items if item.get_closest_marker("mutants")]
    config.hook.pytest_deselected(items=hunts)
    items[:] = [item for item in items if item not in hunts]


@pytest.fixture(scope="session")
def model_url(valkey: RedisServer) -> str:
    """A database for the machines alone."""
    return valkey.fresh_url()
