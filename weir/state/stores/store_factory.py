"""Opens stores of the kind that the configuration names: RocksDB, or in memory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from weir.state.api import StateBackend
from weir.state.stores.directory_lock import StoreDirectory, claim_directory
from weir.state.stores.memory import MemoryBackend

if TYPE_CHECKING:
    from weir.config.stores import RocksDbConfig
    from weir.state.stores.rocksdb_settings import StoreMemory


class StoreFactory:
    """The one place that tells the kinds of stores apart."""

    def __init__(self, settings: RocksDbConfig | None) -> None:
        """``settings``: None: state is kept in memory."""
        self._settings = settings
        #: Shared by all stores of the task manager: its bound holds also during a recovery, and while images are read.
        self._memory: StoreMemory | None = None

    @property
    def keeps_files(self) -> bool:
        """Return whether a store lies in a directory, which it releases when it is closed."""
        return self._settings is not None

    def open(self, directory: StoreDirectory) -> StateBackend:
        """The store of a directory that is claimed; in memory it is empty, and the directory stays the caller's.

        Raises:
            StateError: the store is damaged or cannot be written.
        """
        if self._settings is None:
            return MemoryBackend()
        # Loaded here: a task manager with state in memory does without.
        from weir.state.stores.rocksdb import RocksDbBackend

        return RocksDbBackend(directory, self._settings, memory=self._shared(self._settings))

    def open_files(self, directory: StoreDirectory) -> StateBackend:
        """A store of RocksDB's files that changes none of them: of an image, whatever kind the own store is.

        Raises:
            StateError: a file is damaged.
        """
        from weir.config.stores import RocksDbConfig
        from weir.state.stores.rocksdb import RocksDbBackend

        settings = self._settings or RocksDbConfig()
        return RocksDbBackend(directory, settings, memory=self._shared(settings), read_only=True)

    def _shared(self, settings: RocksDbConfig) -> StoreMemory:
        from weir.state.stores.rocksdb_settings import StoreMemory

        if self._memory is None:
            self._memory = StoreMemory(settings)
        return self._memory

    def open_fresh(self, path: Path) -> StateBackend:
        """A store without content; what an earlier run of ours left is removed, what is not ours never.

        Raises:
            StateError: the directory is not ours, in use, or cannot be written.
        """
        if not self.keeps_files:
            return MemoryBackend()
        directory = claim_directory(path, fresh=True)
        try:
            return self.open(directory)
        except BaseException:
            directory.release()
            raise
