"""Processes of the replicated log: brokers, which keep entries, and one controller, which decides who leads."""
