"""What leases cost a Redis server as workers and leases grow in number: ``-m tests.growth``."""
