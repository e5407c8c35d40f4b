"""When a source reads, and how much at a time."""
