"""Session windows."""
