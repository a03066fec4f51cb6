"""Endpoints to start a report and to ask for it. Plain functions: FastAPI runs them in threads."""

from __future__ import annotations

from typing import Any

from celery.result import AsyncResult
from fastapi import FastAPI

from examples.fastapi_app.tasks import app, report

api = FastAPI()


@api.post("/reports", status_code=202)
def start(rows: int) -> dict[str, str]:
    """Start a report; the answer has the id to ask for."""
    return {"id": report.delay(rows).id}


@api.get("/reports/{task_id}")
def state(task_id: str) -> dict[str, Any]:
    """Return the state, the progress while it runs, and the sum at the end."""
    result = AsyncResult(task_id, app=app)
    meta = result.backend.get_task_meta(task_id)  # one look: state and info belong together
    found, info = meta["status"], meta["result"]
    progress = info if found == "PROGRESS" else None
    return {"state": found, "progress": progress, "sum": info if found == "SUCCESS" else None}
