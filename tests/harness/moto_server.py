"""SQS as moto plays it, in a process of its own on a free port of 127.0.0.1.

Where moto 5.2 differs from what the service's documentation says, the code follows the latter, and
the difference is covered by tests on a stub client (``tests/unit/brokers/sqs/test_sqs_driver.py``):

==========================================  =======================================================
moto                                        the documentation's rule, which the code follows
==========================================  =======================================================
acts by an old receipt handle after         "the request succeeds, but the message might not be
redelivery, on the next holder's message    deleted" (DeleteMessage): nothing is sent by a handle
                                            that may be stale
takes more than 10 entries in a batch       ``TooManyEntriesInBatchRequest`` (batch operations)
lets extensions go on for ever              12 hours from the receipt, then
                                            ``InvalidParameterValue`` (ChangeMessageVisibility)
deletes by an expired handle, FIFO too      FIFO: ``InvalidParameterValue`` "has expired"
                                            (DeleteMessage)
extension after deletion is                 ``InvalidParameterValue`` "does not exist or is not
``ReceiptHandleIsInvalid``                  available": both are a loss
never throttles, is never over its limit    ``RequestThrottled``; ``OverLimit`` at 120,000 messages
                                            in flight (ReceiveMessage): neither is a loss
changes are seen at once                    attributes take up to 60 seconds (SetQueueAttributes)
takes any credentials                       temporary ones expire: ``ExpiredToken``
==========================================  =======================================================
"""

from __future__ import annotations

import itertools
import sys
from typing import TYPE_CHECKING, Any, Self
from urllib.error import URLError
from urllib.request import Request, urlopen

import boto3
from kombu.transport import SQS

from harness import aws_models  # noqa: F401  (makes clients cheap)
from harness.lease_desk import Bench
from harness.processes import LocalProcess
from harness.setup import Setup
from harness.waiting import eventually, free_port

if TYPE_CHECKING:
    from pathlib import Path

REGION = "us-east-1"
ACCOUNT = "123456789012"


class MotoServer(LocalProcess):
    """One server; what is in its queues ends with it."""

    def __init__(self, directory: Path) -> None:
        self.port = free_port()
        directory.mkdir(parents=True, exist_ok=True)
        # In a process of its own and by this interpreter, whatever is on the PATH.
        run = "from moto.server import main; main()"
        command = [sys.executable, "-c", run, "-H", "127.0.0.1", "-p", str(self.port)]
        super().__init__(command, directory / "moto.log")
        self._names = itertools.count(1)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> Self:
        super().start()
        eventually(self._answers, 40, what="answer of moto")
        return self

    def _answers(self) -> bool:
        assert self.returncode is None, f"moto ended:\n{self.log}"
        try:
            with urlopen(f"{self.url}/moto-api/", timeout=5):  # noqa: S310  (our own server)
                return True
        except (URLError, OSError):
            return False

    def client(self, service: str = "sqs") -> Any:
        """Return a client, for looking at the queues' state."""
        return boto3.client(
            service,
            region_name=REGION,
            endpoint_url=self.url,
            aws_access_key_id="testing",
            aws_secret_access_key="testing",  # noqa: S106  (moto takes anything)
        )

    def fresh_queue(self, suffix: str = "", **attributes: str) -> str:
        """Create a queue that no other test uses and return its name."""
        name = f"q{next(self._names)}{suffix}"
        if suffix == ".fifo":
            attributes["FifoQueue"] = "true"
        self.client().create_queue(QueueName=name, Attributes=attributes)
        return name

    def queue_url(self, queue: str) -> str:
        return f"{self.url}/{ACCOUNT}/{queue}"

    def counts(self, queue: str) -> tuple[int, int]:
        """Return how many messages of a queue are visible, and how many are in flight."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        answer = self.client().get_queue_attributes(
            QueueUrl=self.queue_url(queue), AttributeNames=names
        )
        visible, in_flight = (int(answer["Attributes"][name]) for name in names)
        return visible, in_flight

    def empty(self) -> Self:
        """Forget all queues, and have kombu forget their URLs (its channels may share them)."""
        cache = getattr(SQS.Channel, "_queue_cache", None)
        if isinstance(cache, dict):  # before 5.7
            cache.clear()
        with urlopen(Request(f"{self.url}/moto-api/reset", method="POST"), timeout=5):  # noqa: S310
            return self

    def bench(self) -> Bench:
        """Return consumers and publishers of the test's own process."""
        setup = self.setup("q")
        options = {**setup.conf["broker_transport_options"], "wait_time_seconds": 0}
        return Bench(setup.broker, options, shortest=1.0)  # SQS knows whole seconds

    def setup(self, queue: str, *, port: int | None = None, **options: Any) -> Setup:
        """Return the Celery setup of a worker on one queue, by another *port* if given."""
        transport = {
            "region": REGION,
            "is_secure": False,
            "wait_time_seconds": 1,
            "polling_interval": 0.1,
            **options,
        }
        return Setup(
            f"sqs://testing:testing@127.0.0.1:{port or self.port}//",
            conf={"broker_transport_options": transport, "task_default_queue": queue},
        )
