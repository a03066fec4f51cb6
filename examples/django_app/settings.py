"""Django's settings. The ``CELERY_LEASE_*`` ones are all that celery-lease adds."""

from __future__ import annotations

SECRET_KEY = "only for this example"  # noqa: S105
DEBUG = True
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "examples.django_app.urls"
INSTALLED_APPS = ["examples.django_app.videos"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
USE_TZ = True

CELERY_BROKER_URL = "redis://127.0.0.1:6379/0"
CELERY_RESULT_BACKEND = CELERY_BROKER_URL
CELERY_TASK_DEFAULT_QUEUE = "django_app"
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True

CELERY_LEASE_EXTENSION = 120  # seconds that a beat keeps a video from other workers
CELERY_LEASE_MAX_DELIVERIES = 3  # a video that ends three workers goes to django_app.dead
