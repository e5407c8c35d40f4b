"""Decides: membership, placement, the life of the job. Started with ``python -m control_plane``."""
