"""Joins: operators with two inputs, the bytes of the rows that they keep, and their kernels."""
