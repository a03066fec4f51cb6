"""What `mkdocs build` has to know of this documentation; see mkdocs.yml.

The pages are for reading in the repository as well, so they link to files outside of docs/; on the
site such a link is its text alone. Pages come in the order of ORDER, others after them by name.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ORDER = (
    "index",
    "how-it-works",
    "calibration",
    "settings",
    "guarantees",
    "brokers",
    "pgmq",
    "shutdown",
    "operations",
    "observability",
    "testing",
    "fencing",
    "migrating",
    "problems",
    "capacity",
)

#: Links to files elsewhere in the repository, and to directories.
NO_PAGE = re.compile(r"\[([^\]]+)\]\((?:\.\./[^)]*|[\w-]+/)\)")


def on_config(config: Any) -> Any:
    """Put the pages in order."""
    pages = [path.stem for path in Path(config["docs_dir"]).glob("*.md")]
    rest = sorted(set(pages) - set(ORDER))
    config["nav"] = [f"{name}.md" for name in (*ORDER, *rest) if name in pages]
    return config


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Leave the text of links that lead out of the documentation."""
    return NO_PAGE.sub(r"\1", markdown)
