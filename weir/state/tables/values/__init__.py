"""Keyed values of any length."""
