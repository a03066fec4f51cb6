"""``python -m celery_lease.group.exec PARENT PROGRAM ...``: run a program no longer than PARENT.

A process can ask for a signal at its parent's death only from inside, and ``preexec_fn`` is not
safe. So this asks and then becomes the program: the wish survives ``exec``. Linux only; elsewhere
a worker outlives a parent that is killed by SIGKILL, until it is told to stop.
"""

from __future__ import annotations

import ctypes
import os
import sys
from signal import SIGKILL
from typing import NoReturn

PR_SET_PDEATHSIG = 1  # prctl(2)
NOT_FOUND = 127  #: a shell's exit code for a program that cannot be run
FROM_KILL = 128 + SIGKILL  #: and for one that was killed


def main(arguments: list[str]) -> NoReturn:
    """Become the program, or exit."""
    parent, *command = arguments
    die_with(int(parent))
    try:
        os.execv(command[0], command)  # noqa: S606  (the command line is the parent's)
    except OSError as exc:
        sys.stderr.write(f"cannot run {command[0]}: {exc.strerror}\n")
        sys.exit(NOT_FOUND)


def die_with(parent: int) -> None:
    """Have the kernel kill this process when *parent*, which started it, dies."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, int(SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # it died before the kernel knew
        sys.exit(FROM_KILL)


if __name__ == "__main__":
    main(sys.argv[1:])
