"""The page on fenced writes shows the code that is tested."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "fencing.md"
RECIPES = sorted((ROOT / "examples" / "fenced_writes").glob("[!_]*.py"))


def test_every_recipe_is_on_the_page_as_it_is() -> None:
    """Breaks when a recipe is changed and the page is not; paste the file to mend it."""
    blocks = re.findall(r"<!-- (\S+) -->\n```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    shown = {ROOT / name: code for name, code in blocks}
    assert {path: path.read_text() for path in RECIPES} == shown
    assert len(RECIPES) == 5
