"""Entries of windows, in the order of their panes."""
