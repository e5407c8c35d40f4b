"""Decisions of the replicated log: what an entry is, who leads, what is committed, what is a duplicate."""
