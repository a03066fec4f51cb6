"""Compares the public API with that of the last tag, or of the commit that is named.

``python tests/packaging/compare_api.py [COMMIT]`` ends with 1 if a name is gone or a call that was
right is wrong now. What changes on purpose says so in the changelog, and waits for a major version.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import griffe

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
#: What promises its ``__all__``; see docs/promises.md.
PUBLIC = ("celery_lease", "celery_lease.observability", "celery_lease.testing", "celery_lease.web")


def last_tag() -> str:
    """Return the newest version's tag, "" if there is none."""
    command = ("git", "describe", "--tags", "--abbrev=0", "--match", "v[0-9]*")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def breakages(old: griffe.Object, new: griffe.Object) -> Iterator[str]:
    """Yield what of a package's public names is no longer as it was."""
    kept = set(new.exports or ())
    for name in map(str, old.exports or ()):
        if name not in kept:
            yield f"{old.path}.{name} is gone"
            continue
        pair = (each[name] for each in (old, new))
        found = griffe.find_breaking_changes(*(_target(each) for each in pair))
        yield from (each.explain(griffe.ExplanationStyle.ONE_LINE) for each in found)


def _target(found: griffe.Object | griffe.Alias) -> griffe.Object:
    return found.final_target if isinstance(found, griffe.Alias) else found


def main(commit: str) -> int:
    """Compare, and say what was found."""
    if not commit:
        print("no API comparison: this clone has no tag of a version")  # noqa: T201
        return 0
    found = []
    old = griffe.load_git("celery_lease", ref=commit, repo=ROOT, search_paths=["src"])
    new = griffe.load("celery_lease", search_paths=[ROOT / "src"])
    for package in PUBLIC:
        inner = package.partition(".")[2]
        if inner and inner not in old.members:
            continue
        sides = (side[inner] if inner else side for side in (old, new))
        found += breakages(*map(_target, sides))
    print(*found, f"public API compared with {commit}: {len(found)} broken", sep="\n")  # noqa: T201
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else last_tag()))
