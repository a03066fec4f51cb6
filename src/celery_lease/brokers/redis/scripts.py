"""The Lua scripts of this driver, one file each; their headers state what they do."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import redis
    from redis.commands.core import Script

NAMES = (
    "acknowledge",
    "adopt",
    "arrive",
    "begin",
    "dead_letter",
    "claim",
    "complete",
    "due",
    "move_dead_letter",
    "extend",
    "requeue",
    "leave",
    "list",
    "reap",
    "sweep",
    "take",
    "unclaim",
)
#: Scripts without ``though_full.lua`` in front: the first write of the first two needs no memory
#: either; the third is not needed on a full server; the last writes nothing.
_WITHOUT = frozenset({"acknowledge", "arrive", "leave", "list"})
#: Files that are put in front of the scripts that use them, in this order.
_RESTORING = frozenset({"dead_letter", "requeue", "reap", "unclaim"})
_EXCLUSIVE = frozenset({"claim", "complete", "take"}) | _RESTORING
_SHARED = {
    "watching": frozenset({"arrive"}),
    "record": frozenset({"adopt", "arrive"}) | _EXCLUSIVE,
    "exclusive": _EXCLUSIVE,
    "flagged": _RESTORING | {"sweep"},
    "restore": _RESTORING,
}


@cache
def source(name: str) -> str:
    """Return a script's text, with its shared parts in front."""
    shared = [part for part, users in _SHARED.items() if name in users]
    parts = [*([] if name in _WITHOUT else ["though_full"]), *shared, name]
    return "".join(files(__package__).joinpath(f"{part}.lua").read_text() for part in parts)


def register(client: redis.Redis) -> dict[str, Script]:
    """Register all scripts for *client*, without a call; each is loaded when first missing."""
    return {name: client.register_script(source(name)) for name in NAMES}
