"""Examples that come with Weir: jobs to run as they are, and a source and sinks of one's own to start from."""
