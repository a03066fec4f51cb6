"""Authenticates viewers by HTTP: by a user's password, or by a token.

A password is kept as a hash of :func:`hashed`. A token is sent as ``Authorization: Bearer TOKEN``,
or entered as the password of any user name, for which browsers ask by themselves.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from dataclasses import dataclass, field

#: Costs of the hash: about 50 ms and 16 MiB.
N, R, P = 2**14, 8, 1
#: Prefix of a hash.
SCHEME = "scrypt"
#: The most valid headers that are remembered, to save that cost.
MOST_KNOWN = 50


def hashed(password: str) -> str:
    """Return the hash of a password for ``--auth``."""
    salt = secrets.token_hex(16)
    return f"{SCHEME}:{salt}:{_scrypt(password, salt)}"


def _scrypt(password: str, salt: str) -> str:
    return hashlib.scrypt(password.encode(), salt=salt.encode(), n=N, r=R, p=P).hex()


@dataclass(slots=True)
class Access:
    """Finds the user of a request. For the event loop's thread."""

    user: str = ""
    hash: str = ""
    token: str = field(default="", repr=False)
    _known: dict[bytes, str] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, auth: str | None, token: str | None) -> Access | None:
        """Return the access for ``--auth USER:HASH`` and ``--auth-token``; None: neither is given.

        Raises:
            ValueError: One of them is unusable.
        """
        if token is not None and len(token) < 16:  # noqa: PLR2004
            raise ValueError(f"auth_token has {len(token)} characters; give it 16 at least")
        user, _, known = (auth or "").partition(":")
        scheme, _, rest = known.partition(":")
        if auth is not None and (not user or scheme != SCHEME or rest.count(":") != 1):
            raise ValueError(
                "auth is not USER:HASH with a hash of `celery -A APP lease web --make-auth USER`"
            )
        return cls(user, known, token or "") if auth or token else None

    def who(self, header: str) -> str | None:
        """Return the user of an ``Authorization`` header; None: it is not valid."""
        digest = hashlib.sha256(header.encode()).digest()
        if digest in self._known:
            return self._known[digest]
        found = self._who(header)
        if found is not None:
            self._known = dict([*self._known.items(), (digest, found)][-MOST_KNOWN:])
        return found

    def _who(self, header: str) -> str | None:
        scheme, _, given = header.partition(" ")
        if scheme.lower() == "bearer":
            return "token" if self._is_token(given.strip()) else None
        if scheme.lower() != "basic":
            return None
        try:
            user, _, password = base64.b64decode(given, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            return None
        if self._is_token(password):
            return "token"
        return self.user if self._is_user(user, password) else None

    def _is_token(self, given: str) -> bool:
        return bool(self.token) and hmac.compare_digest(given.encode(), self.token.encode())

    def _is_user(self, user: str, password: str) -> bool:
        if not self.user:
            return False
        _, salt, digest = self.hash.split(":")
        good = hmac.compare_digest(_scrypt(password, salt), digest)  # also for a wrong name
        return good and hmac.compare_digest(user.encode(), self.user.encode())
