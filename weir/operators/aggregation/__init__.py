"""What aggregates of windows and running aggregates of keys have in common."""
