"""The lease settings for which the manifests and units in this directory are timed."""

from __future__ import annotations

import os

lease_extension = 300
lease_shutdown_timeout = 60

lease_health_host = "0.0.0.0"  # noqa: S104  (probes connect from outside the container)
# The workers of one container share its address, so each needs its own port.
lease_health_port = {"video": 8001, "mail": 8002}.get(os.environ.get("LEASE_GROUP_MEMBER"), 8000)
