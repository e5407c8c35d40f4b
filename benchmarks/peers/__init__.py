"""The same SQL text over the same files on Flink SQL, Spark Structured Streaming and Weir, in turn."""
