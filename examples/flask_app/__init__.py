"""A Flask application factory, and a Celery app whose tasks run in the application's context."""

from __future__ import annotations

from typing import Any

from celery import Celery, Task
from celery.result import AsyncResult
from flask import Flask, jsonify, request

from examples.flask_app.tasks import count_words


def create_app() -> Flask:
    """Make the application, with its Celery app in ``extensions["celery"]``."""
    app = Flask(__name__)
    app.config.from_mapping(
        LONGEST_LINE=10_000,
        CELERY={
            "broker_url": "redis://127.0.0.1:6379/0",
            "result_backend": "redis://127.0.0.1:6379/0",
            "task_default_queue": "flask_app",
            "broker_connection_retry_on_startup": True,
            "lease_extension": 120,
        },
    )
    app.config.from_prefixed_env()
    make_celery(app)
    app.post("/texts")(start)
    app.get("/texts/<task_id>")(state)
    return app


def make_celery(app: Flask) -> Celery:
    """Make the Celery app, as Flask's documentation has it; leased tasks take its task class."""

    class FlaskTask(Task):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            with app.app_context():
                return self.run(*args, **kwargs)

    celery_app = Celery(app.name, task_cls=FlaskTask)
    celery_app.config_from_object(app.config["CELERY"])
    celery_app.set_default()
    app.extensions["celery"] = celery_app
    return celery_app


def start() -> tuple[Any, int]:
    """Hand a text to a worker; the answer has the id to ask for."""
    result = count_words.delay(request.form["path"])
    return jsonify(id=result.id), 202


def state(task_id: str) -> Any:
    """Return the state, and the number of words when it is there."""
    result = AsyncResult(task_id)
    return jsonify(state=result.state, words=result.result if result.successful() else None)
