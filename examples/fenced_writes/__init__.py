"""Writes that a store takes from the holder of a lease only, and from no former one.

See docs/fencing.md, which explains them.
"""

from __future__ import annotations


class StaleError(Exception):
    """A holder with a larger fencing token has written; nothing was changed. Stop the work."""

    def __init__(self, job: str, token: int) -> None:
        super().__init__(job, token)
        self.job = job
        self.token = token

    def __str__(self) -> str:
        return f"token {self.token} is older than the one that has written {self.job}"
