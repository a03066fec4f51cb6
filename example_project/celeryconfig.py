"""Celery settings of the example. The ``lease_*`` ones are all that celery-lease adds.

They are far shorter than a real application's, so that losing a worker is over in seconds: a lease
here runs out 6 s after the last beat, the default is 300 s.
"""

from __future__ import annotations

import os

broker_url = os.environ.get("EXAMPLE_BROKER_URL", "redis://127.0.0.1:6379/0")
result_backend = os.environ.get("EXAMPLE_RESULT_BACKEND", broker_url)
task_default_queue = os.environ.get("EXAMPLE_QUEUE", "example")
imports = ("example_project.tasks",)
worker_prefetch_multiplier = 1
broker_connection_retry_on_startup = True

lease_extension = 6  # seconds that a beat keeps the job from everybody else
lease_interval = 1  # at most one extension a second and job, however often it beats
lease_reaper_interval = 2  # seconds between two looks for leases that ran out
