"""Stores as images in a checkpoint store: taken, published, opened, read from afar."""
