"""A second kind of work: a seal over a tree, made chunk by chunk, that can stop and go on anywhere.

Each step depends on the one before, so a chunk that is left out or done twice gives a wrong seal.
"""

from __future__ import annotations

import hashlib
from functools import reduce
from typing import TYPE_CHECKING

from example_project.packer import Plan

if TYPE_CHECKING:
    from pathlib import Path

START = ""


def add(seal: str, chunk: bytes) -> str:
    """Return the seal over what ``seal`` covers and ``chunk`` after it."""
    return hashlib.sha256(seal.encode() + chunk).hexdigest()


def expected_seal(tree: Path) -> str:
    """Return the right seal, computed in one go."""
    return reduce(add, Plan.of(tree).chunks(), START)
