"""How long stores of checkpoints keep what they have, in seconds."""

from __future__ import annotations

#: A checkpoint is kept so long after its last save while the task may go on, even if results expire
#: sooner: the next run may wait in a queue, or save seldom.
LEAST_KEPT = 86400

#: The fence stays so long after a success. A former holder is ended when its lease expires; only
#: one that is paused as a whole, with its worker, comes back later than this.
FENCE_KEPT = 600


def kept(expires: int) -> int:
    """Return how long to keep a checkpoint if results are kept for *expires*; 0: for good."""
    return max(expires, LEAST_KEPT) if expires else 0
