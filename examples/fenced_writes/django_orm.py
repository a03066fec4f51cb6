"""Django's ORM: ``filter(token__lte=...).update(...)`` is one statement, ``save()`` is not."""

from __future__ import annotations

from django.db import models

from examples.fenced_writes import StaleError


class Result(models.Model):
    """The value of a job that its newest holder has written."""

    job = models.CharField(max_length=200, unique=True)
    token = models.BigIntegerField()
    value = models.TextField()

    class Meta:
        """Not needed in the models.py of an application."""

        app_label = "videos"

    def __str__(self) -> str:
        return self.job


def write(job: str, token: int, value: str) -> None:
    """Write *value*; raise ``StaleError`` if a newer holder has written."""
    found, made = Result.objects.get_or_create(job=job, defaults={"token": token, "value": value})
    if made:
        return
    mine = Result.objects.filter(pk=found.pk, token__lte=token)
    if not mine.update(token=token, value=value):
        raise StaleError(job, token)
