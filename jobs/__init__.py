"""Dataflows that ship with Weir; each module has a ``build`` function and imports only the public API."""
