"""The Celery worker's part of celery-lease: the only layer that uses the worker's internals."""
