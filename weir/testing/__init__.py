"""Tools for testing operators and jobs; never imported by production code."""
