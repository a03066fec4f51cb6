"""Asks a worker for its health: ``python -m celery_lease.probe --ready --port 8000``.

For orchestrators whose probes run a command. The exit code is 0 if the answer is good, else 1, also
without an answer. It imports neither Celery nor the app, which would take ten times as long as all
of this; and no HTTP client, for the same reason.
"""

from __future__ import annotations

import argparse
import socket
import sys

HOST, TIMEOUT = "127.0.0.1", 3.0
LIVE, READY = "live", "ready"


def ask(what: str, *, port: int, host: str = HOST, timeout: float = TIMEOUT) -> tuple[bool, str]:
    """Return whether a worker is *what* (live or ready), and the body of its answer.

    Args:
        what: :data:`LIVE` or :data:`READY`.
        port: The worker's ``lease_health_port``.
        host: The worker's ``lease_health_host``.
        timeout: Seconds for each step.

    Raises:
        OSError: There was no answer.
    """
    request = f"GET /health/{what} HTTP/1.0\r\nHost: {host}\r\n\r\n"
    with socket.create_connection((host, port), timeout) as line:
        line.sendall(request.encode())
        with line.makefile("rb") as file:
            head, _, body = file.read().partition(b"\r\n\r\n")
    status = head.split(b" ", 2)[1:2]
    if status not in ([b"200"], [b"503"]):
        raise OSError(f"no worker's health server answers there, but: {head[:60]!r}")
    return status == [b"200"], body.decode(errors="replace").strip()


def report(what: str, *, port: int, host: str = HOST, timeout: float = TIMEOUT) -> tuple[int, str]:
    """Ask a worker; return an exit code, and a line for display."""
    try:
        good, said = ask(what, port=port, host=host, timeout=timeout)
    except OSError as exc:
        return 1, f"not {what}: no answer from {host} port {port}: {exc}"
    return (0, f"{what}: {said}") if good else (1, f"not {what}: {said}")


def main() -> int:
    """Ask a worker by the options of the command line; return the exit code."""
    parser = argparse.ArgumentParser(
        "python -m celery_lease.probe", description="Ask a celery worker with leases for its health"
    )
    which = parser.add_mutually_exclusive_group()
    for what in (LIVE, READY):
        which.add_argument(f"--{what}", dest="what", action="store_const", const=what)
    parser.add_argument("--port", type=int, required=True, help="its lease_health_port")
    parser.add_argument("--host", default=HOST, help="its lease_health_host (%(default)s)")
    parser.add_argument("--timeout", type=float, default=TIMEOUT, help="in seconds (%(default)s)")
    asked = parser.parse_args()
    code, line = report(
        asked.what or READY, port=asked.port, host=asked.host, timeout=asked.timeout
    )
    sys.stdout.write(f"{line}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
