"""Keyed accumulators in arrays."""
