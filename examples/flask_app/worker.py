"""For ``celery -A examples.flask_app.worker worker``: the Celery app of a Flask application."""

from __future__ import annotations

from examples.flask_app import create_app

app = create_app().extensions["celery"]
