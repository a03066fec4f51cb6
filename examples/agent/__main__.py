"""``python -m examples.agent DIRECTORY...``: send each to the agent and print what it did."""

from __future__ import annotations

import sys

from examples.agent.tasks import run_agent

for result in [run_agent.delay(directory) for directory in sys.argv[1:] or ["docs"]]:
    for entry in result.get():
        print(entry["tool"], entry["arguments"], "->", entry["outcome"])
