"""Operators of windows over time."""
