"""Latency experiments: a matrix of settings in, ``zout/`` files out."""
