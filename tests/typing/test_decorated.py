"""The expectations in ``decorated.py``, held against real type checkers."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXPECTED = ROOT / "tests" / "typing" / "decorated.py"


def check(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a type checker in the repository, as its configuration wants it."""
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed; it is in the extra 'lint'")
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


CHECKERS = [("mypy", "--strict"), ("pyright",)]


@pytest.mark.parametrize("checker", CHECKERS, ids=["mypy", "pyright"])
def test_a_type_checker_sees_what_is_expected(checker: tuple[str, ...]) -> None:
    """Breaks when a task's parameters or result get lost, or a wrong call is not noticed.

    Expected errors are comments that name them, and a checker complains of one without its error.
    """
    done = check(*checker, str(EXPECTED))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("checker", CHECKERS, ids=["mypy", "pyright"])
def test_a_type_checker_would_see_a_wrong_expectation(
    checker: tuple[str, ...], tmp_path: Path
) -> None:
    """Breaks when everything is Any, and so anything is as expected."""
    wrong = tmp_path / "wrong.py"
    wrong.write_text(EXPECTED.read_text() + 'assert_type(encode.delay("a").get(), int)\n')
    done = check(*checker, str(wrong))
    assert done.returncode == 1
    assert '"int"' in done.stdout or '"bytes"' in done.stdout
