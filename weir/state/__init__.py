"""Keyed state: the interface, its layout in a store, and the backends."""
