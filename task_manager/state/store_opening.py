"""Opens the store that a job's subtasks on this task manager share, as config.json says."""

from __future__ import annotations

from pathlib import Path

from weir.config import RocksDbConfig, TaskManagerConfig
from weir.state.api import StateBackend
from weir.state.stores.store_factory import StoreFactory


def rocksdb_settings(config: TaskManagerConfig) -> RocksDbConfig | None:
    """Returns section ``taskManager.rocksdb``; None: state is kept in memory."""
    return None if config.state_backend == "memory" else config.rocksdb


def open_job_store(config: TaskManagerConfig) -> StateBackend:
    """A store without content; what an earlier run of ours left is removed, what is not ours never.

    Raises:
        StateError: the directory is not ours, in use, or cannot be written.
    """
    return StoreFactory(rocksdb_settings(config)).open_fresh(Path(config.rocksdb_path))
