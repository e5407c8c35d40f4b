"""What ``--follow`` shows."""
