"""The Lua scripts of this driver, one file each, with what they promise in their headers."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import redis

NAMES = ("claim", "complete", "extend", "hand_back", "reap", "unclaim")
_RESTORING = frozenset({"hand_back", "reap", "unclaim"})


@cache
def source(name: str, *, flags: bool) -> str:
    """Return a script's text; *flags*: the server understands a shebang line (7.0 and newer)."""
    here = files(__package__)
    text = here.joinpath(f"{name}.lua").read_text()
    if name in _RESTORING:
        text = here.joinpath("restore.lua").read_text() + text
    return f"#!lua flags=allow-oom\n{text}" if flags else text


def load(client: redis.Redis) -> dict[str, Any]:
    """Register all scripts for *client*; a server that forgets one is sent it again."""
    flags = int(str(client.info("server")["redis_version"]).split(".", 1)[0]) >= 7
    return {name: client.register_script(source(name, flags=flags)) for name in NAMES}
