"""What leases, messages and idle workers cost servers: ``python -m tests.growth``."""
