"""Opens the store that a job's subtasks on this task manager share, as config.json says."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from weir.config import TaskManagerConfig
from weir.state.api import StateBackend
from weir.state.stores.store_factory import StoreFactory

if TYPE_CHECKING:
    from weir.state.stores.rocksdb_settings import RocksDbSettings


def rocksdb_settings(config: TaskManagerConfig) -> RocksDbSettings | None:
    """Returns the settings of section ``taskManager.rocksdb``; None: state is kept in memory."""
    if config.state_backend == "memory":
        return None
    from weir.state.stores.rocksdb_settings import RocksDbSettings

    return RocksDbSettings(**config.rocksdb.model_dump())


def open_job_store(config: TaskManagerConfig) -> StateBackend:
    """A store without content; what an earlier run of ours left is removed, what is not ours never.

    Raises:
        StateError: the directory is not ours, in use, or cannot be written.
    """
    return StoreFactory(rocksdb_settings(config)).open_fresh(Path(config.rocksdb_path))
