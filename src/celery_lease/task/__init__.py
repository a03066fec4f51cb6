"""Leased tasks: the decorator, the context, and a run up to its stored outcome."""
