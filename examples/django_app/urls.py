"""Where the views are."""

from __future__ import annotations

from django.urls import path

from examples.django_app.videos import views

urlpatterns = [path("videos/", views.examine), path("videos/<task_id>/", views.state)]
