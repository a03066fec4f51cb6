"""Django's settings: ``CELERY_LEASE_*``, and an app for checks, page and command of leases."""

from __future__ import annotations

from pathlib import Path

SECRET_KEY = "only for this example"  # noqa: S105
DEBUG = True
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "examples.django_app.urls"
INSTALLED_APPS = [
    "celery_lease.contrib.django",  # before the admin, which gets a link to the page
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "examples.django_app.videos",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": Path(__file__).parent / "db.sqlite3",
    },
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
STATIC_URL = "static/"
TIME_ZONE = "UTC"
USE_TZ = True

CELERY_BROKER_URL = "redis://127.0.0.1:6379/0"
CELERY_RESULT_BACKEND = CELERY_BROKER_URL
CELERY_TASK_DEFAULT_QUEUE = "django_app"
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True

CELERY_LEASE_EXTENSION = 120  # seconds that a beat keeps a video from other workers
CELERY_LEASE_MAX_DELIVERIES = 3  # a video that ends three workers goes to django_app.dead
