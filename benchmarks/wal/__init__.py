"""A write-ahead log shipped to three brokers, ours and a real Kafka's; ``python -m benchmarks wal``."""
