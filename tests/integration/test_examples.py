"""The example applications, each on a real worker and through the doors that its users have."""

from __future__ import annotations

import asyncio
import hashlib
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from harness.waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from celery import Celery

    from celery_lease.testing.plugin import StartWorker

THREADS = ("-P", "threads", "-Q")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """A file of 100 lines with three words each."""
    path = tmp_path / "text.txt"
    path.write_text("one two three\n" * 100)
    return path


@pytest.fixture
def current(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make an app the current one, until the test ends."""
    from celery import _state

    def make(app: Celery) -> None:
        monkeypatch.setattr(_state._tls, "current_app", app)
        monkeypatch.setattr(_state, "default_app", app)

    return make


def test_a_django_view_hands_a_file_to_a_leased_task(
    lease_worker: StartWorker, text: Path, current: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Settings by CELERY_LEASE_*, a task found by autodiscovery, a view that delays it."""
    django = pytest.importorskip("django", reason="Django is not installed")
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "examples.django_app.settings")
    from examples.django_app.celery import app

    django.setup()
    from django.test import Client

    current(app)
    worker = lease_worker("examples.django_app", *THREADS, "django_app")
    client = Client()
    started = client.post("/videos/", {"path": str(text)})
    assert started.status_code == 202
    place = f"/videos/{started.json()['id']}/"
    eventually(lambda: client.get(place).json()["state"] == "SUCCESS", 60, what=lambda: worker.log)
    assert client.get(place).json()["checksum"] == hashlib.sha256(text.read_bytes()).hexdigest()

    from celery_lease import settings

    loaded = settings.load(app.conf)
    assert (loaded.policy.extension, loaded.policy.max_deliveries) == (120, 3)
    assert worker.stop() == 0
    assert "leases at shutdown" in worker.log


def test_a_flask_task_runs_under_a_lease_in_the_application_s_context(
    lease_worker: StartWorker, text: Path, current: Any
) -> None:
    """The app's own task class stays one of the leased task's."""
    pytest.importorskip("flask", reason="Flask is not installed")
    from examples.flask_app import create_app
    from examples.flask_app.worker import app

    flask_app = create_app()
    current(app)
    worker = lease_worker("examples.flask_app.worker", *THREADS, "flask_app")
    client = flask_app.test_client()
    started = client.post("/texts", data={"path": str(text)})
    assert started.status_code == 202
    place = f"/texts/{started.get_json()['id']}"
    eventually(
        lambda: client.get(place).get_json()["state"] == "SUCCESS", 60, what=lambda: worker.log
    )
    assert client.get(place).get_json()["words"] == 300
    assert worker.stop() == 0
    assert "leases at shutdown" in worker.log


def test_a_fastapi_client_sees_a_report_s_progress_and_then_its_sum(
    lease_worker: StartWorker, current: Any
) -> None:
    """What is stored while the task runs is polled by whoever started it."""
    pytest.importorskip("fastapi", reason="FastAPI is not installed")
    pytest.importorskip("httpx", reason="FastAPI's test client needs httpx")
    from examples.fastapi_app.tasks import app

    current(app)
    worker = lease_worker(app, *THREADS, "fastapi_app")
    started = ask("POST", "/reports?rows=200")
    seen: list[dict[str, Any]] = []

    def is_done() -> bool:
        seen.append(ask("GET", f"/reports/{started['id']}"))
        return bool(seen[-1]["state"] == "SUCCESS")

    eventually(is_done, 60, what=lambda: worker.log)
    assert seen[-1]["sum"] == sum(range(200))
    done = [answer["progress"]["done"] for answer in seen if answer["state"] == "PROGRESS"]
    assert len(set(done)) > 2
    assert done == sorted(done)


def ask(method: str, path: str) -> dict[str, Any]:
    """Send a request to the FastAPI application, without a server."""
    import httpx
    from examples.fastapi_app.main import api

    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(app=api)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.request(method, path)

    answer = asyncio.run(send()).raise_for_status()
    found: dict[str, Any] = answer.json()
    return found


def test_an_agent_s_calls_outlive_its_lease_and_its_worker(
    lease_worker: StartWorker, tmp_path: Path, current: Any
) -> None:
    """A command longer than the lease runs once; after a SIGKILL no finished call is repeated."""
    from examples.agent.tasks import app, run_agent

    for name, lines in (("a.txt", 200), ("b.txt", 75)):  # 4 s by a lease of 3 s, and 1.5 s
        (tmp_path / name).write_text("line\n" * lines)
    current(app)
    workers = [lease_worker(app, "-Q", "agent") for _ in range(2)]
    result = run_agent.delay(str(tmp_path))
    first = eventually(lambda: holder(workers), 60, what="a worker with the task")
    eventually(lambda: reads(tmp_path / "b.txt"), 20, what="the second file being read")
    first.kill()
    transcript = result.get(timeout=30)
    assert [entry["tool"] for entry in transcript] == ["list_files", *["count_lines"] * 2, "add"]
    assert [entry["outcome"] for entry in transcript[1:]] == [200, 75, 275]
    by = [entry["worker"].partition(":")[0] for entry in transcript]
    assert by[:2] == [first.hostname] * 2
    assert by[-1] != first.hostname


def holder(workers: list[Any]) -> Any:
    """Return the worker that has received the task, if one has."""
    return next((worker for worker in workers if "received" in worker.log), None)


def reads(path: Path) -> bool:
    """Whether the agent's command reads a file just now."""
    commands = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    return any(str(path) in command for command in commands)


def test_a_collector_gets_leases_in_the_traces_of_their_tasks(
    lease_worker: StartWorker, current: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease, its task's own span, the batches of extensions and a loss, from a pool."""
    for name in ("exporter.otlp.proto.http", "instrumentation.celery"):
        pytest.importorskip(f"opentelemetry.{name}", reason="OpenTelemetry is not installed")
    from examples.traced_app.tasks import app, count_slowly

    from harness.collector import Collector, attributes

    current(app)
    sent = ("ab" * 16, "cd" * 8)  # the trace, and the span in it that sends the message
    headers = {"traceparent": f"00-{'-'.join(sent)}-01"}
    with Collector() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "200")
        worker = lease_worker("examples.traced_app.tasks", "-c", "1", "-Q", "traced_app")
        options = {"headers": headers, "lease_extension": 6, "lease_interval": 0.5}
        task_id = count_slowly.apply_async((20,), **options).id

        def hold() -> list[Any]:
            return collector.named("hold traced_app")

        def run() -> list[Any]:
            return collector.named(f"run/{count_slowly.name}")

        def extended() -> list[Any]:
            return collector.named("extend leases")

        eventually(lambda: hold() and run() and extended(), 30, what=lambda: worker.log)
        [held], [ran] = hold(), run()
        before = len(extended())
        count_slowly.apply_async((600,), **options)
        # The first of these may still have been under way for the task before.
        eventually(lambda: len(extended()) > before + 1, 30, what="another one beats")
        for process in psutil.Process(worker.pid).children():
            process.kill()
        eventually(lambda: collector.named("lose traced_app"), 30, what=lambda: worker.log)
        assert worker.stop() == 0
    [loss, *_] = collector.named("lose traced_app")
    assert attributes(loss)["error.type"] == "process_died"
    assert loss.parent_span_id in {each.span_id for each in hold()}
    assert {(each.trace_id.hex(), each.parent_span_id.hex()) for each in (held, ran)} == {sent}
    assert held.start_time_unix_nano <= ran.start_time_unix_nano
    assert [each.name for each in held.events] == ["started"]
    facts = attributes(held)
    assert facts.pop("celery.lease.worker")
    assert facts == {
        "messaging.system": "redis",
        "messaging.operation.name": "hold",
        "messaging.destination.name": "traced_app",
        "messaging.message.id": task_id,
        "celery.task_name": count_slowly.name,
        "celery.lease.mode": "heartbeat",
        "celery.lease.deliveries": 1,
        "celery.lease.losses": 0,
        "celery.lease.ending": "completed",
    }
    batch = attributes(extended()[0])
    assert (batch["messaging.batch.message_count"], batch["celery.lease.held"]) == (1, 1)
