"""Translates SQS's answers for leases.

Only an error about the message itself can be a loss. Everything else (throttling, a server error,
missing rights, no connection) counts as no answer: the call is repeated until the deadline.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_lease.core.delivery import Answer

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# The JSON protocol leaves out this prefix, which some names have in the query protocol.
_PREFIX = "AWS.SimpleQueueService."

#: Errors for a message that is gone, visible again, or was received again.
_GONE = frozenset({"ReceiptHandleIsInvalid", "MessageNotInflight", "InvalidParameterValue"})
#: Part of the message of an ``InvalidParameterValue`` for a timeout beyond 12 hours: the timeout is
#: unchanged, and the message is still ours.
_TOO_LONG = "beyond the limit"


def answers_of(response: Mapping[str, Any], ids: Iterable[str]) -> dict[str, Answer]:
    """Return the answer to each entry of a batch call that succeeded as a call."""
    answers = dict.fromkeys(ids, Answer.UNKNOWN)
    for entry in response.get("Successful") or ():
        answers[entry["Id"]] = Answer.HELD
    for entry in response.get("Failed") or ():
        answers[entry["Id"]] = _answer(entry)
    return answers


def _answer(failed: Mapping[str, Any]) -> Answer:
    code = str(failed.get("Code", "")).removeprefix(_PREFIX)
    if code not in _GONE or _TOO_LONG in str(failed.get("Message", "")):
        return Answer.UNKNOWN
    return Answer.LOST


def failures_of(response: Mapping[str, Any]) -> str:
    """Return the distinct errors of a batch call's entries, for the log; "": there are none."""
    failed = response.get("Failed") or ()
    return "; ".join(sorted({f"{each.get('Code')}: {each.get('Message')}" for each in failed}))
