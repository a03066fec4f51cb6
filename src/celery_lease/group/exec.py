"""``python -m celery_lease.group.exec PARENT PROGRAM ...``: runs a program until PARENT dies.

Only a process itself can ask for a signal at its parent's death, and ``preexec_fn`` is not safe. So
this program asks and then becomes the other: the request survives ``exec``. Linux only; elsewhere a
worker outlives a parent that is killed by SIGKILL, until an operator stops it.
"""

from __future__ import annotations

import ctypes
import os
import sys
from signal import SIGKILL
from typing import NoReturn

PR_SET_PDEATHSIG = 1  # prctl(2)
NOT_FOUND = 127  #: a shell's exit code for a program that cannot be run
FROM_KILL = 128 + SIGKILL  #: a shell's exit code for a program that was killed


def main(arguments: list[str]) -> NoReturn:
    """Become the program, or exit."""
    parent, *command = arguments
    die_with(int(parent))
    try:
        os.execv(command[0], command)  # noqa: S606  (the parent has set the command line)
    except OSError as exc:
        sys.stderr.write(f"cannot run {command[0]}: {exc.strerror}\n")
        sys.exit(NOT_FOUND)


def die_with(parent: int) -> None:
    """Make the kernel kill this process when *parent*, which started it, dies."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, int(SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # it died before prctl()
        sys.exit(FROM_KILL)


if __name__ == "__main__":
    main(sys.argv[1:])
