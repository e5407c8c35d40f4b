"""Timers by time and key."""
