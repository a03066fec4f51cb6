"""Messages against every fault we can stage: is one lost, is one held twice? ``-m tests.chaos``."""
