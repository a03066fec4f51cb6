"""Messages against restarts: are any lost, are any run twice? ``python -m tests.storm``."""
