"""A channel of its own for who asks from another thread."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from celery_lease.celery_patches import shared_fanout_queues

pytestmark = pytest.mark.compat


def test_a_channel_of_its_own_shares_no_table_of_fanout_queues() -> None:
    """Kombu's is the class's: who iterates over it must be the only one to write."""
    from kombu.transport.redis import Channel

    assert Channel.__dict__["_fanout_queues"] is not None
    made = SimpleNamespace(_fanout_queues=Channel._fanout_queues)
    connection = SimpleNamespace(channel=lambda: made)
    channel = shared_fanout_queues.channel_of_its_own(connection)
    assert channel._fanout_queues is not Channel._fanout_queues
