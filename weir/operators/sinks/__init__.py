"""Sinks: where rows go, and when they count as delivered."""
