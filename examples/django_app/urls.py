"""Where the views are, the admin, and the page of leases."""

from __future__ import annotations

from django.contrib import admin
from django.urls import path

from celery_lease.contrib.django.urls import lease_urls
from examples.django_app.videos import views

urlpatterns = [
    path("videos/", views.examine),
    path("videos/<task_id>/", views.state),
    path("admin/", admin.site.urls),
    path("leases/", lease_urls()),
]
