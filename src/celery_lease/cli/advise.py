"""``celery -A proj lease advise``: proposes settings for each task, from its beats and runs."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import click

from celery_lease.cli.broker import EX_UNAVAILABLE, reached
from celery_lease.cli.rows import HOUR, span
from celery_lease.cli.workers import (
    DESTINATION,
    TIMEOUT,
    asker,
    report_silent,
    warn_of_namesakes,
)
from celery_lease.core.pace import Pace
from celery_lease.core.policy import Mode
from celery_lease.core.words import counted, plain
from celery_lease.settings.conf import Spelling
from celery_lease.settings.table import BY_NAME

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: The values that are proposed for ``lease_extension``, in seconds.
EXTENSIONS = (15, 30, 45, 60, 90, 120, 180, 240, 300, 450, 600, 900, 1200, 1800, 2700, 3600, 7200)
#: The values that are proposed for ``lease_max_duration``, in hours. A limit of less than an hour
#: would throw finished work away if the result backend is away for so long.
DURATIONS = (1, 2, 3, 4, 6, 8, 12, 18, 24, 36, 48, 72, 96, 120, 168, 240, 336, 504, 720)
#: A proposed ``lease_max_duration`` is at least so many times the longest run.
MARGIN = 2
#: Fewer runs are no basis for a proposal.
FEW = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """The proposal for a task. Durations are in seconds."""

    lease_mode: str
    lease_extension: int
    lease_interval: float
    lease_max_duration: int | None = None  #: None: no basis
    why: str = ""  #: a note beside the numbers

    @property
    def settings(self) -> dict[str, Any]:
        return {
            name: value
            for name, value in asdict(self).items()
            if name != "why" and value is not None
        }


def advice_for(pace: Pace, outage: float) -> Advice | None:
    """Return a proposal for a broker that may be away for *outage* seconds; None: no basis.

    By the rules of docs/calibration.md: a gap takes half of a lease at most, and the rest of a
    lease at the time of its next extension is longer than the outage.
    """
    if not pace.runs:
        return None
    notes = []
    if pace.silent and pace.silent == pace.runs:
        notes.append("no beat was seen: let it beat, or keep it by its process")
    elif _fitting(pace.longest_gap, outage) is None:
        notes.append("its gaps are too long: let it beat more often")
    mode, gap = (Mode.DAEMON, 0.0) if notes else (Mode.HEARTBEAT, pace.longest_gap)
    if pace.runs < FEW:
        notes.append(f"only {counted(pace.runs, 'run')} so far: observe it longer")
    extension = _fitting(gap, outage) or EXTENSIONS[-1]
    return Advice(
        lease_mode=str(mode),
        lease_extension=extension,
        lease_interval=_interval(extension),
        lease_max_duration=_duration(pace, extension),
        why="; ".join(notes),
    )


def _duration(pace: Pace, extension: int) -> int | None:
    """Return the proposed longest duration of a task's lease; None: too few runs, or too long."""
    least = max(MARGIN * pace.longest_run, extension)
    fitting = (hours * HOUR for hours in DURATIONS if hours * HOUR >= least)
    return next(fitting, None) if pace.runs >= FEW else None


def _fitting(gap: float, outage: float) -> int | None:
    return next(
        (each for each in EXTENSIONS if 2 * gap <= each and outage < each - _interval(each) - gap),
        None,
    )


def _interval(extension: float) -> float:
    value: Any = BY_NAME["lease_interval"].value({}, extension)
    return float(value)


@click.command()
@click.option(
    "--outage",
    type=click.FloatRange(0, 3600),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="How long the broker may be away without a task losing its lease.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "python"]),
    default="text",
    show_default=True,
    help="For people, for machines, or lines for the configuration.",
)
@DESTINATION
@TIMEOUT
@click.pass_context
def advise(
    ctx: click.Context, outage: float, form: str, destination: list[str], timeout: float
) -> None:
    """Propose lease settings for each task.

    The proposal is made from the beats and the runs that the workers have seen since they started,
    in any lease_mode; "observe" enforces nothing meanwhile. Exits with status 69 if no worker
    replied, with 1 if a worker named by -d did not reply.
    """
    app = ctx.obj.app
    with reached(app.connection_for_write()) as connection:
        ask = asker(app, connection)
        replies = ask("lease_about", destination, timeout, {"pace": True})
    warn_of_namesakes(ask.duplicates)
    silent = report_silent(destination, replies, timeout)
    paces = merged(replies)
    prefix = Spelling(str(app.conf.prefix or ""), frozenset())
    if form == "json":
        click.echo(json.dumps(document(paces, outage), indent=2, ensure_ascii=False))
    else:
        write = in_python(paces, outage, prefix) if form == "python" else in_words(paces, outage)
        click.echo("\n".join(write))
    if silent:
        ctx.exit(1 if replies else EX_UNAVAILABLE)


def merged(replies: Mapping[str, Any]) -> dict[str, Pace]:
    """Return the paces of all workers together, by task."""
    found: dict[str, Pace] = {}
    for _, reply in sorted(replies.items()):
        for name, data in reply.get("paces", {}).items():
            found.setdefault(name, Pace()).add(Pace.from_dict(data))
    return dict(sorted(found.items()))


def document(paces: Mapping[str, Pace], outage: float) -> dict[str, Any]:
    """Return proposals and paces as a JSON document."""
    return {"outage": outage, "tasks": [_facts(*each, outage) for each in paces.items()]}


def _facts(task: str, pace: Pace, outage: float) -> dict[str, Any]:
    advice = advice_for(pace, outage)
    return {
        "task": task,
        "now": {"lease_mode": pace.mode, "lease_extension": pace.extension},
        "proposed": None if advice is None else asdict(advice),
        "runs": pace.runs,
        "longest_run": pace.longest_run,
        "silent": pace.silent,
        "late": pace.late,
        "lost": pace.lost,
        "gaps": {
            "count": pace.gaps.total(),
            "p50": pace.quantile(0.5),
            "p99": pace.quantile(0.99),
            "max": pace.longest_gap,
        },
    }


def in_words(paces: Mapping[str, Pace], outage: float) -> Iterator[str]:
    """Yield a paragraph for each task."""
    if not paces:
        yield "no leased task has run since the workers started"
    for task, pace in paces.items():
        advice = advice_for(pace, outage)
        yield f"{task}: {_proposal(advice) if advice else 'nothing to go by yet'}"
        yield f"  seen: {_evidence(pace)}"
        if pace.mode:
            yield f"  now: lease_mode {pace.mode}, lease_extension {plain(pace.extension)} s"
        if advice and advice.why:
            yield f"  note: {advice.why}"


def _proposal(advice: Advice) -> str:
    longest = advice.lease_max_duration
    return (
        f"lease_mode {advice.lease_mode}, lease_extension {advice.lease_extension} s, "
        f"lease_interval {plain(advice.lease_interval)} s"
        + (f", lease_max_duration {longest} s" if longest else "")
    )


def _evidence(pace: Pace) -> str:
    gaps = pace.gaps.total()
    text = counted(pace.runs, "run")
    text += f", the longest {span(pace.longest_run)}" if pace.runs else ""
    if gaps:
        text += f"; {counted(gaps, 'gap')} between beats, half of them up to "
        text += f"{span(pace.quantile(0.5))}, 99 % up to {span(pace.quantile(0.99))}, the longest "
        text += span(pace.longest_gap)
    if pace.late:
        text += f"; {counted(pace.late, 'run')} with a gap longer than the lease"
    return text + (f"; {counted(pace.lost, 'run')} lost" if pace.lost else "")


def in_python(paces: Mapping[str, Pace], outage: float, spelling: Spelling) -> Iterator[str]:
    """Yield lines for the configuration, under the app's namespace."""
    yield f"{spelling.of('task_annotations')} = {{"
    for task, pace in paces.items():
        advice = advice_for(pace, outage)
        if advice is None:
            continue
        yield f"    # {_evidence(pace)}" + (f"; {advice.why}" if advice.why else "")
        yield f"    {task!r}: {advice.settings!r},"
    yield "}"
