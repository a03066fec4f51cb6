"""What an installation contains and what importing it costs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib import metadata, resources
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import celery_lease

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

ROOT = Path(__file__).parents[3]
#: What the drivers that not every environment can load need.
EXTRAS = {"sqs": "boto3", "pgmq": "psycopg"}


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


def test_the_version_is_that_of_the_distribution() -> None:
    """It is written nowhere in the sources: it comes from the tag."""
    assert celery_lease.__version__ == metadata.version("celery-lease")


def changelog() -> list[str]:
    """Return the titles of the changelog's versions, newest first."""
    return re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)


def test_the_changelog_has_the_form_of_keep_a_changelog() -> None:
    """One section for what is not released, dated ones below it, and the six kinds of changes."""
    unreleased, *released = changelog()
    assert unreleased == "[Unreleased]"
    dated = [re.fullmatch(r"\[(\d+\.\d+\.\d+)\] - \d{4}-\d\d-\d\d", title) for title in released]
    assert all(dated)
    text = (ROOT / "CHANGELOG.md").read_text()
    kinds = re.findall(r"^### (.+)$", text, re.MULTILINE)
    assert set(kinds) <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    for title in ["Unreleased", *(match[1] for match in dated if match)]:
        assert re.search(rf"^\[{re.escape(title)}\]: https://", text, re.MULTILINE), title


def test_all_but_the_redis_driver_works_without_the_client_of_redis() -> None:
    """Which is an extra, as the clients of other brokers are."""
    program = """
import sys
sys.modules["redis"] = None
import celery_lease
import celery_lease.cli, celery_lease.worker.steps, celery_lease.task.task
import celery_lease.task.decorator
from celery_lease import brokers
from celery_lease.brokers.amqp.driver import AmqpDriver
assert brokers.driver_class("amqp") is AmqpDriver
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_every_entry_point_loads() -> None:
    """Celery's command line and pytest find what the metadata promises them."""
    entry_points = metadata.distribution("celery-lease").entry_points
    groups = {"celery.commands", "pytest11", "celery_lease.brokers"}
    assert {point.group for point in entry_points} == groups
    for point in entry_points:
        if find_spec(EXTRAS.get(point.name, "celery_lease")) is not None:
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


def test_neither_commands_nor_workers_import_what_only_terminals_need() -> None:
    """``lease top`` imports Textual when it draws."""
    program = (
        "import sys, celery_lease.cli, celery_lease.installation; "
        "print({'rich', 'textual'} & sys.modules.keys())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"


def test_tests_pass_where_they_can_keep_nothing() -> None:
    """As for a user who may not write to the checkout: neither pytest's cache nor hypothesis'."""
    nowhere = os.devnull + "/kept"
    module = ROOT / "tests/unit/brokers/pgmq/test_pgmq_fence.py"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-o", f"cache_dir={nowhere}", str(module)],
        env={**os.environ, "HYPOTHESIS_STORAGE_DIRECTORY": nowhere},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
