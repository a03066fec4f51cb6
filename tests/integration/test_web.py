"""The page over a real broker and a real worker, without a browser."""

from __future__ import annotations

import json
import signal
import socket
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from kombu import Producer

from celery_lease.web.watch import PageWatch
from harness.brokers import RedisServer
from harness.page import PageServer
from harness.places import place_of
from harness.setup import Setup
from harness.shell import lease_command
from harness.waiting import eventually
from harness.workers import WorkerOptions

if TYPE_CHECKING:
    from pathlib import Path

    import redis

    from harness.ledger import Ledger
    from harness.workers import WorkerFleet

MODULE = "harness.app_page"
#: Seconds over which the broker's work is counted.
COUNTED = 4.0


def document(server: PageServer, path: str) -> dict[str, Any]:
    return dict(json.loads(server.get(path)))


def commands(client: redis.Redis) -> int:
    return int(client.info("stats")["total_commands_processed"])


def viewer(server: PageServer) -> socket.socket:
    """Open a page's stream of news, as a browser does."""
    opened = socket.create_connection(("127.0.0.1", server.port), timeout=10)
    opened.sendall(f"GET /news HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n\r\n".encode())
    assert b"text/event-stream" in opened.recv(4096)
    return opened


def test_json_is_that_of_the_commands_and_events_say_how_it_ended(
    setup: Setup, fleet: WorkerFleet, ledger: Ledger, tmp_path: Path
) -> None:
    """Of one lease: status and board, explain and task; then the timeline, with its ending.

    Workers that sent no events before send none when nobody looks any more.
    """
    setup = setup.having(lease_extension=20)
    worker = fleet.start(setup, WorkerOptions(module=MODULE, concurrency=2))
    with (
        setup.app() as app,
        PageServer(setup, MODULE, tmp_path, "--events", "--show-args") as server,
    ):
        task_id = str(app.send_task("video.transcode", (300,)).id)
        server.start().wait_up()
        ledger.wait("start", task_id)
        server.get("/timeline")
        (mine,) = document(server, "/board.json")["leases"]
        (theirs,) = json.loads(lease_command(setup, MODULE, "status", "--json"))["leases"]
        assert mine.keys() == theirs.keys()
        same = ("id", "task", "worker", "tag", "token", "queue", "deliveries", "hostname")
        assert {name: mine[name] for name in same} == {name: theirs[name] for name in same}
        page = document(server, f"/task.json?id={task_id}")
        command = json.loads(lease_command(setup, MODULE, "explain", "--json", task_id))
        assert page.keys() == command.keys()
        assert page["known"] is True
        assert "<pre>[300]" in server.get(f"/task?id={task_id}").decode()
        (hand,) = document(server, "/workers.json")["workers"]
        assert hand["name"] == worker.hostname
        assert hand["state"]["keeper_lag"] < 5

        short = str(app.send_task("video.transcode", (2,)).id)

        def ending() -> str:
            server.get("/")
            bars = document(server, "/timeline.json")["deliveries"]
            return "".join(bar["end"] for bar in bars if bar["task_id"] == short)

        eventually(lambda: ending() == "completed", 30, every=0.3, what=ending)
        server.term()
        assert server.wait() == -signal.SIGTERM  # uvicorn ends well, and raises it again
        inspect = app.control.inspect(destination=[worker.hostname], timeout=5)
        assert inspect.stats()[worker.hostname]["lease"]["worker"]
        replies = app.control.enable_events(reply=True, timeout=5)
        assert replies == [{worker.hostname: {"ok": "task events enabled"}}]


def test_twenty_viewers_cost_the_broker_no_more_than_one(
    valkey: RedisServer, setup: Setup, fleet: WorkerFleet, tmp_path: Path
) -> None:
    """Counted at the server."""
    fleet.start(setup, WorkerOptions(module=MODULE))
    client = valkey.client(setup.database)
    with PageServer(setup, MODULE, tmp_path) as server, ExitStack() as stack:
        server.start().wait_up()

        def counted() -> int:
            before = commands(client)
            time.sleep(COUNTED)
            return commands(client) - before

        stack.enter_context(viewer(server))
        time.sleep(1)
        one = counted()
        for _ in range(19):
            stack.enter_context(viewer(server))
        twenty = counted()
    assert one > 0
    assert twenty <= one * 2 + 10


def test_a_broker_that_ends_while_a_question_is_sent_is_told(
    valkey_path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Soon, and also that it is back: the watch does not send that question until it can."""
    with RedisServer(valkey_path, tmp_path / "valkey").start() as broker:
        sent = Producer.publish

        def publish(*args: Any, **options: Any) -> Any:
            broker.kill()
            broker.wait()
            return sent(*args, **options)

        with Setup(broker.fresh_url()).app() as app:
            watch = PageWatch(app)
            try:
                assert not watch.current().trouble
                with monkeypatch.context() as patch:
                    patch.setattr(Producer, "publish", publish)
                    eventually(lambda: "refused" in watch.current().trouble, 5)
                broker.start()
                eventually(lambda: not watch.current().trouble, 10)
            finally:
                watch.close()


@pytest.mark.parametrize(
    ("broker", "said"), [("rabbitmq classic", "RabbitMQ"), ("sqs", "SQS"), ("pgmq", "pgmq")]
)
def test_the_page_says_what_a_broker_does_not_tell(
    broker: str, said: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """It is up, it says why there is nothing to see, and offers no button that cannot work."""
    setup = place_of(broker, request).setup
    with PageServer(setup, MODULE, tmp_path) as server:
        server.start().wait_up()
        eventually(lambda: said in server.get("/").decode(), 20)
        assert b"/do/cancel" not in server.get("/task?id=x")
        assert server.get("/dead")
        assert server.get("/doctor")
        workers = server.get("/workers").decode()
        assert "/do/drain" not in workers
