"""The long work: it knows the application's configuration, and beats for each line."""

from __future__ import annotations

from pathlib import Path

from flask import current_app

from celery_lease import ToolContext, leased_task


@leased_task(lease_extension=60)
def count_words(path: str, *, context: ToolContext) -> int:
    """Count the words in a file, line by line."""
    longest = current_app.config["LONGEST_LINE"]
    with Path(path).open() as lines:
        return sum(len(line[:longest].split()) for line in context.track(lines))
