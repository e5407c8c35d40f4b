"""Rescales: key groups and splits that move."""
