"""What the project promises in numbers, measured: ``python tests/benchmarks``."""
