"""Every driver of ours passes the suite that others can have."""

import pytest

from celery_lease.testing.conformance import *  # noqa: F403

pytestmark = [pytest.mark.compat, pytest.mark.long]
