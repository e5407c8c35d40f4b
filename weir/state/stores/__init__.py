"""State backends that hold bytes on this machine: RocksDB and memory."""
