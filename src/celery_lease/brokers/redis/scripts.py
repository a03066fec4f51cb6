"""The Lua scripts of this driver, one file each, with what they promise in their headers."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import redis
    from redis.commands.core import Script

NAMES = (
    "adopt",
    "arrive",
    "bury",
    "claim",
    "complete",
    "exhume",
    "extend",
    "hand_back",
    "reap",
    "sweep",
    "unclaim",
)
#: What goes before the scripts that want it, in this order.
_SHARED = {
    "restore": frozenset({"bury", "hand_back", "reap", "unclaim"}),
    "arrived": frozenset({"adopt", "claim", "unclaim"}),
}


@cache
def source(name: str) -> str:
    """Return a script's text, with what it shares with others before it."""
    shared = [part for part, users in _SHARED.items() if name in users]
    parts = ["though_full", *shared, name]
    return "".join(files(__package__).joinpath(f"{part}.lua").read_text() for part in parts)


def register(client: redis.Redis) -> dict[str, Script]:
    """Register all scripts for *client*, without a call; a server that lacks one is sent it."""
    return {name: client.register_script(source(name)) for name in NAMES}
