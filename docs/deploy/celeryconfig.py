"""The lease settings that every manifest and unit beside this file is timed for."""

from __future__ import annotations

import os

lease_extension = 300
lease_shutdown_timeout = 60

lease_health_host = "0.0.0.0"  # noqa: S104  (a probe comes from outside the container)
# The workers of one container share its address: each needs a port of its own.
lease_health_port = {"video": 8001, "mail": 8002}.get(os.environ.get("LEASE_GROUP_MEMBER"), 8000)
