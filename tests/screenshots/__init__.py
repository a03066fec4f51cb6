"""Pictures of the commands at work, from real runs: ``python -m tests.screenshots``."""
