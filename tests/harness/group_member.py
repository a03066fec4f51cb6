"""A process for a group: ``python -m harness.group_member NAME [OPTION ...]``.

Writes to the ledger what happens to it. Leaves at the first SIGTERM, SIGINT or SIGQUIT.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from harness.ledger import record

if TYPE_CHECKING:
    from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1)


def main(arguments: list[str]) -> None:
    """Do what the options say and wait to be told to leave."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("--code", type=int, default=0, help="exit code")
    parser.add_argument("--needs", type=int, default=1, help="leave at this many signals")
    parser.add_argument("--child", action="store_true", help="have a child that ignores signals")
    parser.add_argument("--orphan", action="store_true", help="make an orphan and see it buried")
    options = parser.parse_args(arguments)
    Member(options).live()


class Member:
    """The process."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.left = int(options.needs)

    def live(self) -> None:
        for number in SIGNALS:
            signal.signal(number, self.told)
        if self.options.child:
            ignore = f"trap '' {' '.join(str(int(number)) for number in SIGNALS)}"
            subprocess.Popen(["sh", "-c", f"{ignore}; while true; do sleep 1; done"])
        if self.options.orphan:
            self.see_an_orphan_buried()
        record("up", worker=self.options.name, parent=os.getppid())
        while self.left > 0:
            time.sleep(0.05)
        record("end", worker=self.options.name)
        sys.exit(self.options.code)

    def told(self, number: int, _frame: FrameType | None) -> None:
        record("told", worker=self.options.name, signal=signal.Signals(number).name)
        if number != signal.SIGUSR1:
            self.left -= 1

    def see_an_orphan_buried(self) -> None:
        """Start a process whose parent ends first; a zombie stays in /proc until it is reaped."""
        orphan = subprocess.run(
            ["sh", "-c", "sleep 1 >/dev/null 2>&1 & echo $!"],
            capture_output=True,
            text=True,
            check=True,
        )
        path = Path("/proc") / orphan.stdout.strip()
        record("orphan", worker=self.options.name, exists=path.exists())
        while path.exists():
            time.sleep(0.02)
        record("buried", worker=self.options.name)


if __name__ == "__main__":
    main(sys.argv[1:])
