"""The workers, from their own replies."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from celery_lease import brokers
from celery_lease.cli.broker import reached
from celery_lease.cli.doctor.survey import WorkerAnswer, survey
from celery_lease.cli.workers import CannotAsk
from celery_lease.view.asking import is_askable, replies_to

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from celery import Celery


#: The most characters of arguments that are shown.
LONGEST = 5000


@dataclass(frozen=True, slots=True, kw_only=True)
class Hand:
    """One worker."""

    answer: WorkerAnswer
    state: Mapping[str, Any] = field(default_factory=dict)  #: its reply to ``lease_state``

    @property
    def said(self) -> str:
        if not self.answer.leased:
            return "without leases"
        if self.state.get("stopping"):
            return "stopping"
        if self.state.get("draining"):
            return "drained" if not self.state.get("running") else "draining"
        return "taking messages" if self.state.get("ready", True) else "not ready"


def crew_of(app: Celery, timeout: float) -> Sequence[Hand]:
    """Return all workers that reply, by name.

    Raises:
        click.ClickException: The broker is away, or does not carry remote control.
    """
    with reached(app.connection_for_read()) as connection:
        kind = str(connection.transport.driver_type)
        if not is_askable(connection):
            raise CannotAsk(kind)
        answers = survey(app, brokers.driver_class(kind), timeout)
        names = [each.name for each in answers if each.leased]
        states = (
            dict(replies_to(app, "lease_state", names, timeout=timeout, connection=connection))
            if names
            else {}
        )
    return [Hand(answer=each, state=states.get(each.name, {})) for each in answers]


def arguments_of(app: Celery, task_id: str, node: str, timeout: float) -> tuple[str, str] | None:
    """Return a task's positional and keyword arguments from its worker; None: no reply.

    Raises:
        click.ClickException: The broker is away.
    """
    with reached(app.connection_for_write()) as connection:
        replies = replies_to(
            app,
            "query_task",
            [node],
            timeout=timeout,
            arguments={"ids": [task_id]},
            connection=connection,
        )
    for _, reply in replies:
        if isinstance(reply, dict) and task_id in reply:
            facts = reply[task_id][1]
            return str(facts.get("args"))[:LONGEST], str(facts.get("kwargs"))[:LONGEST]
    return None


def document(crew: Sequence[Hand]) -> dict[str, Any]:
    """Return workers as a JSON document."""
    return {
        "workers": [
            {
                "name": each.answer.name,
                "leased": each.answer.leased,
                "said": each.said,
                "state": dict(each.state),
                "versions": dict(each.answer.versions),
                "queues": list(each.answer.queues),
                "settings": dict(each.answer.settings),
                "about": dict(each.answer.about),
                "clock": each.answer.clock and asdict(each.answer.clock),
                "namesakes": each.answer.namesakes,
            }
            for each in crew
        ]
    }
