"""Operators that keep nothing: expressions, and functions of a job's author."""
