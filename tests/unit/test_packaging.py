"""What an installation contains and what importing it costs."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib import metadata, resources
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import celery_lease

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

ROOT = Path(__file__).parents[2]


def files_below(directory: Traversable, prefix: str = "") -> set[str]:
    """Return the relative names of all files, caches aside."""
    names: set[str] = set()
    for entry in directory.iterdir():
        if entry.is_dir() and entry.name != "__pycache__":
            names |= files_below(entry, f"{prefix}{entry.name}/")
        elif entry.is_file():
            names.add(prefix + entry.name)
    return names


def test_the_installed_package_has_every_file_of_the_source_tree() -> None:
    """Lua scripts and the typing marker are installed like the modules are."""
    installed = files_below(resources.files(celery_lease))
    assert installed == files_below(ROOT / "src" / "celery_lease")
    assert "py.typed" in installed
    assert any(name.endswith(".lua") for name in installed)


def test_the_installed_version_is_the_one_in_pyproject() -> None:
    """An environment with an old installation is noticed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert metadata.version("celery-lease") == project["version"]


def test_every_entry_point_loads() -> None:
    """Celery's command line and pytest find what the metadata promises them."""
    entry_points = metadata.distribution("celery-lease").entry_points
    assert {point.group for point in entry_points} == {"celery.commands", "pytest11"}
    for point in entry_points:
        assert point.load() is not None


def test_all_public_names_exist_in_alphabetical_order() -> None:
    """The list that users and tools read is complete and sorted."""
    names = list(celery_lease.__all__)
    assert names == sorted(names)
    assert [name for name in names if not hasattr(celery_lease, name)] == []


@pytest.mark.parametrize("module", ["celery_lease", "celery_lease.testing.plugin"])
def test_importing_the_package_or_its_pytest_plugin_does_not_import_celery(module: str) -> None:
    """Neither who only wants a Heartbeat nor any pytest run on this machine pays for Celery."""
    program = f"import sys, {module}; print('celery' in sys.modules or 'kombu' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"
