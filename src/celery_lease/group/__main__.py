"""``python -m celery_lease.group --timeout SECONDS --member NAME PRIORITY COMMAND ...``.

``celery -A proj lease group`` becomes this program; COMMAND is one argument, quoted as for a shell.
"""

from __future__ import annotations

import argparse
import logging
import shlex
import sys
from typing import TYPE_CHECKING

from .parent import Parent
from .plan import Member

if TYPE_CHECKING:
    from collections.abc import Iterable

# The format of a worker's log lines, with this name in the place of the process's.
LOG_FORMAT = "[%(asctime)s: %(levelname)s/lease-group] %(message)s"


def arguments_for(members: Iterable[Member], timeout: float) -> list[str]:
    """Return a command line that :func:`main` parses."""
    arguments = ["--timeout", repr(timeout)]
    for member in members:
        command = shlex.join(member.command)
        arguments += ["--member", member.name, str(member.priority), command]
    return arguments


def main(arguments: list[str]) -> int:
    """Run a group and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m celery_lease.group")
    parser.add_argument("--timeout", type=float, required=True)
    parser.add_argument("--member", nargs=3, action="append", required=True)
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format=LOG_FORMAT)
    return Parent(map(_member, options.member), options.timeout).run()


def _member(texts: list[str]) -> Member:
    name, priority, command = texts
    return Member(name=name, priority=int(priority), command=tuple(shlex.split(command)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
