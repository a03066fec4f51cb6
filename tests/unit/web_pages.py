"""A page over leases that a test makes up: no broker, no worker, no thread."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from celery import Celery
from starlette.testclient import TestClient

from celery_lease.view import LeaseRow, Progress, View
from celery_lease.web import create_app
from celery_lease.web.watch import Look, PageWatch
from unit.fakes import FakeClock

if TYPE_CHECKING:
    from collections.abc import Iterable

HOST = "http://127.0.0.1:5556"
ADDRESS = re.compile(r"""(?:href|src|action|hx-get)="([^"#]*)""")


class Still(PageWatch):
    """A watch that shows what it is given."""

    def __init__(
        self, rows: Iterable[LeaseRow] = (), *, broker: str = "memory://", **facts: Any
    ) -> None:
        app = Celery("video", broker=broker, set_as_current=False)
        super().__init__(app, clock=FakeClock())  # type: ignore[arg-type]
        self.asked = 0
        self.show(rows, **facts)

    def show(self, rows: Iterable[LeaseRow] = (), **facts: Any) -> None:
        """Have these leases be the latest look."""
        known = {"workers": ("w1@here",), "recorded": True}
        names = (*known, "silent", "unavailable", "parked", "parked_in")
        known |= {name: facts.pop(name) for name in names if name in facts}
        self.latest = Look(
            number=self.latest.number + 1,
            view=View(rows=list(rows), **known),
            at=self.clock.now(),
            wall=self.clock.wall().timestamp(),
            **facts,
        )

    def current(self) -> Look:
        self.asked += 1
        return self.seen()


def lease(number: int = 0, **facts: Any) -> LeaseRow:
    """Return a lease of a task that runs."""
    progress = facts.pop("progress", Progress(done=2, total=8, note="working"))
    usual: dict[str, Any] = {
        "task": "video.transcode",
        "id": f"id-{number:05}",
        "hostname": "w1@here",
        "shown_as": "w1@here",
        "worker": "w1@here:7:ab",
        "state": "running",
        "held_since": 1_700_000_000.0 + number,
        "started_at": 1_700_000_000.0 + number,
        "remaining": 50.0,
        "beat_age": 1.0,
        "deliveries": 1,
        "losses": 0,
        "queue": "celery",
        "tag": f"tag-{number}",
        "extension": 60.0,
        "mode": "heartbeat",
        "progress": progress,
    }
    return LeaseRow(**(usual | facts))


def parked(number: int = 0, **facts: Any) -> LeaseRow:
    """Return a message that waits for a key."""
    waits = {"state": "parked", "hostname": "", "shown_as": "", "worker": "", "started_at": None}
    waits |= {"remaining": 0.0, "beat_age": None, "deliveries": 0, "extension": 0.0, "mode": ""}
    waits |= {"key": "import:7", "position": number + 1, "progress": Progress()}
    return lease(number, id=f"parked-{number:05}", **(waits | facts))


def client(watch: PageWatch, **options: Any) -> TestClient:
    """Return a browser of the page."""
    return TestClient(create_app(watch.app, watch=watch, **options), base_url=HOST)


def page(watch: PageWatch, path: str = "/", **options: Any) -> str:
    """Return a page's HTML."""
    answer = client(watch, **options).get(path)
    assert answer.status_code == 200, answer.text
    return answer.text


def cells(html: str) -> list[list[str]]:
    """Return the texts of the leases' cells, row by row."""
    rows = re.findall(r"<tr role=\"row\" class.*?</tr>", html, re.DOTALL)
    return [[text_of(cell) for cell in re.findall(r"<td.*?</td>", row, re.DOTALL)] for row in rows]


def text_of(html: str) -> str:
    """Return what a reader sees of some HTML."""
    return " ".join(re.sub(r"<[^>]*>", " ", html).split())
