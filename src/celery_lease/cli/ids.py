"""Completes task ids from their first characters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from celery_lease.view import Sources, view_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


#: Characters of Celery's own ids, and the fewest of them that are shown.
WHOLE, SHORTEST = 36, 8
#: Ids in an error about several matches.
NAMED = 5


def expanded(text: str, ids: Iterable[str]) -> str:
    """Return the one id that begins with *text*; *text* itself if it is an id or matches none.

    An id shorter than Celery's own is an app's, and may be the beginning of another ("report-1",
    "report-10"): it has to be given whole.

    Raises:
        click.UsageError: *text* is empty, or several ids match.
    """
    if not text:
        raise click.UsageError("a task id is empty")
    known = set(ids)
    found = sorted(each for each in known if len(each) >= WHOLE and each.startswith(text))
    if text in known or len(text) >= WHOLE or not found:
        return text
    if len(found) == 1:
        return found[0]
    shown = ", ".join(found[:NAMED]) + (", …" if len(found) > NAMED else "")
    raise click.UsageError(f"{len(found)} task ids begin with {text}: {shown}. Give more of it")


def expanded_by_leases(
    texts: Sequence[str], sources: Sources, timeout: float, more: Iterable[str] = ()
) -> list[str]:
    """Return whole ids for *texts*, from all known leases and from *more* ids.

    If all are whole already, no worker is asked.
    """
    if all(len(text) >= WHOLE for text in texts):
        return list(texts)
    ids = {*more, *(row.id for row in view_of(sources, timeout).rows)}
    return [expanded(text, ids) for text in texts]


def unique_length(ids: Iterable[str]) -> int:
    """Return the number of characters that makes the ids distinct, at least the shortest shown.

    Ids that are shorter than Celery's own are shown whole.
    """
    different = {each for each in ids if len(each) >= WHOLE}
    for length in range(SHORTEST, WHOLE):
        if len({each[:length] for each in different}) == len(different):
            return length
    return max(map(len, different), default=WHOLE)
