"""Checkpoints and savepoints."""
