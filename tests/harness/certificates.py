"""A self-signed certificate for 127.0.0.1, made when a test needs one."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def make_certificate(directory: Path) -> dict[str, Path]:
    """Write a key and a certificate that is its own authority; valid for two days."""
    paths = {"cert": directory / "cert.pem", "key": directory / "key.pem"}
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"),
            *("-keyout", str(paths["key"]), "-out", str(paths["cert"])),
        ],
        check=True,
        capture_output=True,
    )
    return paths
