"""The driver passes the suite of celery-lease."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from celery_lease.testing.conformance import *  # noqa: F403
from celery_lease.testing.desk import Bench

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def driver_under_test(tmp_path: Path) -> Iterator[Bench]:
    """An empty folder."""
    options = {
        "data_folder_in": str(tmp_path),
        "data_folder_out": str(tmp_path),
        "control_folder": str(tmp_path / "control"),
        "polling_interval": 0.02,
    }
    bench = Bench("filesystem://", options, lacks={"orders", "dead_letters"})
    yield bench
    bench.close()
