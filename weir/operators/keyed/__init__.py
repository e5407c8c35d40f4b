"""Keyed operators: built-in running aggregates, and those that users write."""
