"""The driver's own clients: kombu's belong to the event loop and wait for minutes.

A client signs as kombu's does for the same queue and uses the same endpoint, but with short
timeouts and without retries: the keeper repeats a call anyway, and sooner.

Uses of kombu internals, as read in 5.5.4 and 5.7.0: ``Channel.sqs``, ``predefined_queues`` and the
transport options ``sts_role_arn`` and ``sts_token_timeout``; and of botocore's, one that kombu uses
there, too: ``client._request_signer._credentials``.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import botocore.session
from botocore.config import Config
from botocore.credentials import RefreshableCredentials

from celery_lease.brokers.sqs.calls import AT_ONCE

#: The most seconds of a call, and the limits (connect, read) for each.
TIMEOUTS = {4.0: (1.5, 2.5), 1.0: (0.4, 0.6)}
#: Connections that a client keeps; the keeper's calls and the main loop's may coincide.
CONNECTIONS = 2 * AT_ONCE
#: Seconds before their end at which temporary credentials are renewed: at most, at least. SQS's
#: shortest credentials are valid for 900.
_RENEW, _RENEW_AT_LATEST = 240, 60


@dataclass(frozen=True, slots=True)
class Access:
    """The endpoint and the credentials for one queue's API."""

    credentials: Any
    region: str
    endpoint: str
    config: Config

    @classmethod
    def of(cls, channel: Any, queue: str) -> Access:
        """Read them from kombu's client for a *queue*, named as at SQS."""
        template = channel.sqs(queue=queue)
        role = channel.transport_options.get("sts_role_arn")
        if role and channel.predefined_queues:
            credentials = _assumed(role, channel.transport_options.get("sts_token_timeout", 900))
        else:
            credentials = template._request_signer._credentials  # noqa: SLF001
        meta = template.meta
        return cls(credentials, meta.region_name, meta.endpoint_url, meta.config)

    def client(self, connect: float, read: float) -> Any:
        """Create a client; that does not connect."""
        session = botocore.session.Session()
        session.register_component("credential_provider", _Given(self.credentials))
        limits = Config(
            connect_timeout=connect,
            read_timeout=read,
            retries={"total_max_attempts": 1},
            max_pool_connections=CONNECTIONS,
        )
        return session.create_client(
            "sqs",
            region_name=self.region,
            endpoint_url=self.endpoint,
            config=self.config.merge(limits),
        )


class Clients:
    """Clients by queue and timeout, created when first needed. From any thread.

    Queues with the same access share a client.
    """

    def __init__(self) -> None:
        self._accesses: dict[str, Access] = {}
        self._clients: dict[tuple[Access, float], Any] = {}
        #: Held while a client is created, by any thread that needs one; nothing is sent meanwhile.
        #: Reentrant, because a signal handler may interrupt its holder and need one, too.
        self._making = threading.RLock()

    def learn(self, channel: Any, queue: str) -> None:
        """Read the access to a *queue*, named as at SQS, unless it is known."""
        if queue not in self._accesses:
            self._accesses[queue] = Access.of(channel, queue)

    def client(self, queue: str, within: float) -> Any:
        """Return a client whose calls end *within* these seconds, or within the least possible.

        Raises:
            KeyError: The queue's access was not read.
        """
        timeout = max((each for each in TIMEOUTS if each <= within), default=min(TIMEOUTS))
        key = self._accesses[queue], timeout
        client = self._clients.get(key)
        if client is not None:
            return client
        with self._making:
            if key not in self._clients:
                self._clients[key] = self._accesses[queue].client(*TIMEOUTS[timeout])
            return self._clients[key]

    def close(self) -> None:
        """Close all connections; later calls create new clients."""
        while self._clients:
            self._clients.popitem()[1].close()


class _Given:
    """A credential provider that returns given credentials."""

    def __init__(self, credentials: Any) -> None:
        self._credentials = credentials

    def load_credentials(self) -> Any:
        return self._credentials


def _assumed(role: str, seconds: int) -> Any:
    """Return credentials of an assumed role; the thread that signs renews them."""

    def assume() -> dict[str, str]:
        limits = Config(connect_timeout=2, read_timeout=3, retries={"total_max_attempts": 1})
        sts = botocore.session.Session().create_client("sts", config=limits)
        got = sts.assume_role(
            RoleArn=role, RoleSessionName="celery-lease", DurationSeconds=seconds
        )["Credentials"]
        return {
            "access_key": got["AccessKeyId"],
            "secret_key": got["SecretAccessKey"],
            "token": got["SessionToken"],
            "expiry_time": got["Expiration"].isoformat(),
        }

    return RefreshableCredentials.create_from_metadata(
        assume(),
        refresh_using=assume,
        method="sts-assume-role",
        advisory_timeout=_RENEW,
        mandatory_timeout=_RENEW_AT_LATEST,
    )
