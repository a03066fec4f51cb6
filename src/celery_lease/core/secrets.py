"""Masks the passwords of addresses in texts for people.

Texts of client libraries, kombu and settings about a connection may contain its URL, its libpq
string or the password alone. All of them pass through here before they are printed or logged.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MASK = "**"

#: ``scheme://user:password@``, up to the last "@": a password may have one, too, and a slash. Of an
#: address with an "@" in its path this masks more than it has to.
_IN_URL = re.compile(r"(\b[a-zA-Z][\w+.-]*://[^\s:/?#;@]*:)[^\s;'\"]*(?=@)")
#: A URL's scheme; its user, password and host; and the rest.
_PARTS = re.compile(r"([\w+.-]*)://([^/?#]*)(.*)", re.DOTALL)
#: Schemes of database URLs, whose parsers allow a slash in a password.
_TOLERANT = ("db+", "sqla", "sqlalchemy")
#: ``password=...`` of a query or a libpq string, quoted or not.
_NAMED = re.compile(r"(\bpass(?:word|wd)?\s*=\s*)('(?:[^'\\]|\\.)*'|[^\s&;'\"]+)", re.IGNORECASE)


def masked(text: object, *urls: str | None) -> str:
    """Return a text with all passwords in it masked.

    Args:
        text: Anything, such as an error.
        urls: Addresses that the text is about; their passwords may stand in it alone.
    """
    said = _NAMED.sub(rf"\g<1>{MASK}", _IN_URL.sub(rf"\g<1>{MASK}", str(text)))
    for secret in _secrets(filter(None, urls)):
        said = said.replace(secret, MASK)
    return said


def is_misread(url: str) -> bool:
    """Whether a character in a URL's password, such as "/", is taken for the end of the host.

    Kombu then connects to another host, or raises an error that has a part of the password.
    """
    return any(map(_is_misread, url.split(";")))


def _is_misread(url: str) -> bool:
    found = _PARTS.fullmatch(url)
    if found is None or found[1].startswith(_TOLERANT) or ":" not in found[2] or "@" in found[2]:
        return False
    before, at, _ = found[3].partition("@")
    has_port = found[2].rpartition(":")[2].isdecimal()
    return bool(at) and not (has_port and "=" in before)  # an "=" before "@": the "@" is in a query


def address_of(connection: Any) -> str:
    """Return a kombu connection's URL without its password."""
    return masked(connection.as_uri())


def said_of(connection: Any, reason: object) -> str:
    """Return the text of an error about a kombu connection, with its passwords masked."""
    known = connection.password if isinstance(connection.password, str) else None
    alone = f"any://:{quote(known, safe='')}@" if known else None
    return masked(reason, alone, connection.hostname, *(connection.alt or ()))


def _secrets(urls: Iterable[str]) -> Iterator[str]:
    for url in urls:
        for each in url.split(";"):
            try:
                secret = urlsplit(each).password
            except ValueError:  # a text that is no URL has no password
                continue
            if secret:
                yield from sorted({secret, unquote(secret), quote(unquote(secret))}, reverse=True)
