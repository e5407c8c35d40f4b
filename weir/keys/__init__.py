"""Keys: from rows to bytes, hashes, key groups and subtasks."""
