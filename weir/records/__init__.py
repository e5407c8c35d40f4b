"""Where a process that decides keeps its record: in a file or in etcd."""
