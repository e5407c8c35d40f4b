"""What authors of jobs subclass and declare."""
