"""What a broker keeps of a partition: segments of entries, in files or in memory."""
