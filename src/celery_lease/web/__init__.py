"""A page with all leases: ``celery -A proj lease web``, or an ASGI app to mount in another one.

It shows the workers' replies merged with the broker's records, as ``lease top`` does. One watch
serves all viewers; every page has a JSON document, in the schema of the commands' ``--json``.

Needs the extra ``web``.
"""

from __future__ import annotations

from .app import create_app

__all__ = ["create_app"]
