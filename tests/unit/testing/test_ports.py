"""Ports for servers that several processes of tests start at the same time."""

from __future__ import annotations

import itertools
import socket

import pytest

from celery_lease.testing import ports


def test_processes_of_a_run_share_no_port(monkeypatch: pytest.MonkeyPatch) -> None:
    """A port that a server has not taken yet, or that it takes again, is no other process's."""
    shares = []
    for number in range(ports.SHARES):
        monkeypatch.setenv("PYTEST_XDIST_WORKER", f"gw{number}")
        shares.append(set(ports._mine()))
    assert set().union(*shares) == set(ports.PORTS)
    assert sum(map(len, shares)) == len(ports.PORTS)


def test_a_port_in_use_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless every one is in use."""
    free = ports.free_port()
    with socket.socket() as server:
        server.bind(("127.0.0.1", taken := ports.free_port()))
        monkeypatch.setattr(ports, "_ports", itertools.cycle([taken, free]))
        assert ports.free_port() == free
        monkeypatch.setattr(ports, "_ports", itertools.cycle([taken]))
        with pytest.raises(OSError, match=r"no port of 127\.0\.0\.1 from 20000 to 31999"):
            ports.free_port()
