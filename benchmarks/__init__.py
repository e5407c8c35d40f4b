"""Benchmarks: ``python -m benchmarks NAME --json PATH``."""
