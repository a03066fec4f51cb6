"""Messages that break Celery's own handling of what it receives."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from celery import signals
from celery.worker.consumer import Consumer

from celery_lease.celery_patches import malformed_messages

TASK = {"task": "t", "id": "i"}
BODY = [[], {}, {}]


class Sender(SimpleNamespace):
    """Something that a signal can come from."""

    __hash__ = object.__hash__


class Handled:
    """A consumer of stand-ins around Celery's own handler, and what became of one message."""

    def __init__(self, headers: object, payload: object, error: Exception | None = None) -> None:
        self.started: list[str] = []
        self.rejected = False

        def strategy(message: Any, *_: object) -> None:
            if error is not None:
                raise error
            self.started.append(message.headers["id"])

        nothing = lambda *_, **__: None  # noqa: E731
        consumer: Any = Sender(
            strategies={"t": strategy},
            on_task_message=(),
            call_soon=nothing,  # 5.5
            call_soon_ack=nothing,
            on_unknown_message=nothing,
            on_unknown_task=lambda _, message, __: message.headers["id"],
            on_invalid_task=nothing,
            on_decode_error=nothing,
            connection_errors=(OSError,),
            restart_count=0,
            _restore_prefetch_count_after_connection_restart=nothing,
            _maximum_prefetch_restored=True,
        )
        consumer.create_task_handler = partial(Consumer.create_task_handler, consumer)
        malformed_messages.outlive(consumer)
        self.message = SimpleNamespace(
            headers=headers,
            body=b"body",
            payload=payload,
            decode=lambda: payload,
            acknowledged=False,
            ack_log_error=nothing,
            reject_log_error=self._reject,
        )
        self._handle = consumer.create_task_handler()

    def _reject(self, *_: object) -> None:
        self.rejected = True

    def run(self) -> Handled:
        """Let the message arrive."""
        self._handle(self.message)
        return self


@pytest.mark.parametrize(
    ("headers", "payload"),
    [
        ({**TASK, "task": ["t"]}, BODY),
        ({"task": None}, BODY),
        ({**TASK, "timelimit": "x"}, BODY),
        ({**TASK, "timelimit": [1, "soon"]}, BODY),
        ({}, {**TASK, "task": {}}),
    ],
    ids=str,
)
def test_a_message_that_celery_cannot_handle_is_rejected_with_a_line_and_a_signal(
    headers: object, payload: object, caplog: pytest.LogCaptureFixture
) -> None:
    """No error gets out, which would end the worker."""
    handed_on: list[object] = []

    def hear(message: object, **_: object) -> None:
        handed_on.append(message)

    signals.task_rejected.connect(hear)  # type: ignore[attr-defined]
    handled = Handled(headers, payload).run()
    assert handled.rejected
    assert not handled.started
    assert handed_on == [handled.message]
    assert caplog.text.count("message is not a task's, rejected") == 1


@pytest.mark.parametrize(
    ("headers", "payload"),
    [({**TASK, "id": []}, BODY), ({"task": "t"}, BODY), (TASK, None), (TASK, [[], {}])],
    ids=str,
)
def test_an_error_of_a_malformed_message_does_not_get_out(headers: object, payload: object) -> None:
    """Whatever part of Celery it breaks."""
    assert Handled(headers, payload, TypeError("no hash")).run().rejected


@pytest.mark.parametrize("headers", [TASK, {**TASK, "timelimit": [None, 3]}], ids=str)
def test_an_error_that_is_not_the_messages_fault_is_celerys(headers: object) -> None:
    """The message must not be thrown away for it."""
    handled = Handled(headers, BODY, TypeError("a bug"))
    with pytest.raises(TypeError, match="a bug"):
        handled.run()
    assert not handled.rejected


def test_a_good_message_reaches_its_task() -> None:
    """Nothing is in its way."""
    assert Handled({**TASK, "timelimit": [3, None]}, BODY).run().started == ["i"]
