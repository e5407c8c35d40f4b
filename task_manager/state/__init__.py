"""Keyed state between task managers: the store, and its service and client."""
