"""A task manager's part in checkpoints and restores."""
