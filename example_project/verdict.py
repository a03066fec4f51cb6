"""Whether everything that the demo promises was true, from what the jobs left behind.

Pure decisions on evidence: the ledgers and manifests of the jobs, the states in the result backend,
the archives' checksums as read back from disk. Every promise is one :class:`Check`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from example_project.jobdir import LedgerLine


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What one job left behind."""

    job: str
    state: str  #: what the result backend says
    ledger: Sequence[LedgerLine]
    manifest: dict[str, Any] | None
    archive_sha256: str | None  #: of the archive's content, read back from disk

    def lines(self, event: str) -> list[LedgerLine]:
        """Return the ledger's lines of one kind, oldest first."""
        return [line for line in self.ledger if line.event == event]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """The killing of one worker."""

    worker: str
    at: float  #: wall-clock seconds
    tokens: dict[str, int]  #: job name to the fencing token that the worker held it with
    free: int  #: processes of living workers that had no job then


@dataclass(frozen=True, slots=True)
class Check:
    """One promise; no faults means that it was kept."""

    promise: str
    faults: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Takeover:
    """One job that went from a killed worker to a living one."""

    job: str
    worker: str
    old_token: int
    new_token: int
    seconds: float  #: from the kill to the new start


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """All that is known at the end."""

    jobs: Sequence[Evidence]
    expected: str  #: the right checksum
    kill: Kill | None
    takeovers: Sequence[Takeover]
    promised: float  #: longest time from a kill to a new start, with a process free for it
    checks: Sequence[Check]
    seconds: float

    @property
    def good(self) -> bool:
        """Whether every promise was kept."""
        return not any(check.faults for check in self.checks)


def judge(
    jobs: Sequence[Evidence], expected: str, kill: Kill | None, *, kill_wanted: bool, left: int
) -> list[Check]:
    """Hold the evidence against the promises; ``left`` messages were still in the queue."""
    taken = kill.tokens if kill else {}
    checks = [
        Check("every job ended in SUCCESS", _each(jobs, _not_successful)),
        Check(
            "nobody began a job that a living worker had",
            _each(jobs, lambda job: _begun_too_often(job, taken)),
        ),
        Check("every job was finished once, by its last holder", _each(jobs, _not_finished_once)),
        Check("every checksum is right", _each(jobs, lambda job: _wrong_checksum(job, expected))),
        Check("no message is left in the queue", (f"{left} are",) if left else ()),
    ]
    if kill_wanted:
        checks.append(Check("every job of the killed worker was taken over", _lost(jobs, kill)))
    return checks


def takeovers(jobs: Sequence[Evidence], kill: Kill | None) -> list[Takeover]:
    """Return what became of the killed worker's jobs, soonest first."""
    if kill is None:
        return []
    found = [_takeover(job, kill) for job in jobs if job.job in kill.tokens]
    return sorted((one for one in found if one is not None), key=lambda one: one.seconds)


def _each(jobs: Sequence[Evidence], fault_of: Callable[[Evidence], str | None]) -> tuple[str, ...]:
    found = ((job.job, fault_of(job)) for job in jobs)
    return tuple(f"{name}: {fault}" for name, fault in found if fault)


def _not_successful(job: Evidence) -> str | None:
    return None if job.state == "SUCCESS" else f"is {job.state}"


def _begun_too_often(job: Evidence, taken: Mapping[str, int]) -> str | None:
    starts, allowed = len(job.lines("start")), 2 if job.job in taken else 1
    return None if starts <= allowed else f"begun {starts} times instead of {allowed}"


def _not_finished_once(job: Evidence) -> str | None:
    finishes = job.lines("finish")
    if len(finishes) != 1:
        return f"finished {len(finishes)} times"
    newest = max((line.holder.token for line in job.lines("start")), default=None)
    token = finishes[0].holder.token
    if token != newest:
        return f"finished with token {token}, the last holder's was {newest}"
    recorded = (job.manifest or {}).get("token")
    return None if recorded == token else f"its manifest has token {recorded}, not {token}"


def _wrong_checksum(job: Evidence, expected: str) -> str | None:
    claimed = (job.manifest or {}).get("sha256")
    if claimed != expected:
        return f"the task reports {claimed}, right is {expected}"
    if job.archive_sha256 != expected:
        return f"the archive on disk has {job.archive_sha256}, right is {expected}"
    return None


def _lost(jobs: Sequence[Evidence], kill: Kill | None) -> tuple[str, ...]:
    if kill is None:
        return ("no worker was caught with a job half done",)
    taken = {takeover.job for takeover in takeovers(jobs, kill)}
    return tuple(
        f"{job}: nobody else started it with a token above {token}"
        for job, token in kill.tokens.items()
        if job not in taken
    )


def _takeover(job: Evidence, kill: Kill) -> Takeover | None:
    old = kill.tokens[job.job]
    for line in job.lines("start"):
        if line.holder.token > old and line.holder.worker != kill.worker:
            return Takeover(
                job=job.job,
                worker=line.holder.worker,
                old_token=old,
                new_token=line.holder.token,
                seconds=line.at - kill.at,
            )
    return None
