"""What `mkdocs build` has to know of this documentation; see mkdocs.yml.

The pages are for reading in the repository as well, so they link to files outside of docs/; on the
site such a link is its text alone.
"""

from __future__ import annotations

import re
from typing import Any

#: Links to files elsewhere in the repository, and to directories.
NO_PAGE = re.compile(r"\[([^\]]+)\]\((?:\.\./[^)]*|[\w-]+/)\)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Leave the text of links that lead out of the documentation."""
    return NO_PAGE.sub(r"\1", markdown)
