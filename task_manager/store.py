"""Opens the store that a job's subtasks on this task manager share, as config.json says."""

from __future__ import annotations

from pathlib import Path

from weir.config import TaskManagerConfig
from weir.state.api import StateBackend


def open_job_store(config: TaskManagerConfig) -> StateBackend:
    """A store without content; what an earlier run of ours left is removed, what is not ours never.

    Raises:
        StateError: the directory is not ours, in use, or cannot be written.
    """
    if config.state_backend == "memory":
        from weir.state.memory import MemoryBackend

        return MemoryBackend()
    from weir.state.rocksdb import open_store
    from weir.state.rocksdb_settings import RocksDbSettings

    return open_store(Path(config.rocksdb_path), RocksDbSettings(**config.rocksdb.model_dump()), fresh=True)
