"""Kombu's payload of a message, as its virtual transports store it."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


def body_of(payload: Mapping[str, Any]) -> str:
    """Return a message's body as text; bytes that are no text are replaced."""
    body = payload.get("body")
    if payload["properties"].get("body_encoding") == "base64" and isinstance(body, str):
        return base64.b64decode(body).decode(errors="replace")
    return body if isinstance(body, str) else json.dumps(body)
