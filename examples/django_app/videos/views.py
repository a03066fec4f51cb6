"""A view that hands a video to a worker, and one that returns its state."""

from __future__ import annotations

from celery.result import AsyncResult
from django.http import HttpRequest, JsonResponse
from django.views.decorators.http import require_POST

from examples.django_app.videos.tasks import checksum


@require_POST
def examine(request: HttpRequest) -> JsonResponse:
    """Start; the answer has the id to ask for."""
    result = checksum.delay(request.POST["path"])
    return JsonResponse({"id": result.id}, status=202)


def state(_request: HttpRequest, task_id: str) -> JsonResponse:
    """Return the state, and the checksum when it is there."""
    result = AsyncResult(task_id)
    done = result.result if result.successful() else None
    return JsonResponse({"state": result.state, "checksum": done})
