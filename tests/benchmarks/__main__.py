"""Run all benchmarks, or those named: ``python tests/benchmarks [NAME ...]``.

``--short`` measures ratios in about a minute, and exits with 1 if one is clearly worse than the
published one. Otherwise prints a table; a run of all also writes ``docs/benchmark.json`` and
``docs/benchmark.svg``. Exits with 1 if a target was missed, so that a machine can watch it.
"""

from __future__ import annotations

import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
sys.path[0] = str(TESTS)  # instead of this directory: `benchmarks` and `harness` are found there

if __name__ == "__main__":
    from benchmarks.runner import main

    sys.exit(main(sys.argv[1:], TESTS.parent / "docs"))
