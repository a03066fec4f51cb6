"""Ports for the servers of tests."""

from __future__ import annotations

import itertools
import os
import random
import socket
from contextlib import suppress

#: Below those that systems give to outgoing connections, which may take a port at any moment.
PORTS = range(20_000, 32_000)
#: The most processes of pytest-xdist that share them out.
SHARES = 16


def _mine() -> range:
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0")
    return PORTS[int(worker.removeprefix("gw")) % SHARES :: SHARES]


_ports = itertools.cycle(random.sample(_mine(), len(_mine())))


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 that nothing uses, and that is not returned soon again.

    Raises:
        OSError: There is none.
    """
    for port in itertools.islice(_ports, len(PORTS)):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise OSError(f"no port of 127.0.0.1 from {PORTS[0]} to {PORTS[-1]} is free")
