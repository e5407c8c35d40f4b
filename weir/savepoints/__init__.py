"""State of jobs that are stopped, read from a savepoint or a checkpoint."""
