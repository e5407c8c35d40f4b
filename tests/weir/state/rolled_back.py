"""Stores that go back to an earlier image, as those of a job do that starts from a checkpoint."""

import shutil
from pathlib import Path

from weir.config.stores import RocksDbConfig
from weir.state.api import StateBackend
from weir.state.stores.directory_lock import DATA_NAME
from weir.state.stores.memory import MemoryBackend
from weir.state.stores.memory_image import read_entries
from weir.state.stores.rocksdb import RocksDbBackend, open_store


class ImageOf:
    """What a store of any kind has now; the store is closed, or emptied, when :meth:`reopened` replaces it."""

    def __init__(self, store: StateBackend, directory: Path, groups: int) -> None:
        """``directory``: does not exist yet; ``groups``: how many key groups the store may have entries of."""
        self._store = store
        self._directory = directory
        self._groups = groups
        self._entries: list[tuple[bytes, bytes]] = []
        if isinstance(store, MemoryBackend | RocksDbBackend):
            store.checkpoint(directory)
        else:
            self._entries = self._listed(store)

    def _listed(self, store: StateBackend) -> list[tuple[bytes, bytes]]:
        prefixes = (group.to_bytes(2, "big") for group in range(self._groups))
        return [entry for prefix in prefixes for entry in store.scan_prefix(prefix)]

    def reopened(self, store: StateBackend) -> StateBackend:
        """A store with that content in place of ``store``; may be called more than once."""
        if isinstance(store, RocksDbBackend):
            store.close()
            open_store(store.path, RocksDbConfig(), fresh=True).close()
            shutil.rmtree(store.path / DATA_NAME)
            shutil.copytree(self._directory, store.path / DATA_NAME)
            return open_store(store.path, RocksDbConfig(), fresh=False)
        if isinstance(store, MemoryBackend):
            again = type(store)()
            for entries in read_entries(self._directory):
                again.write(entries)
            return again
        store.write(deletes=[key for key, _ in self._listed(store)])
        store.write(self._entries)
        return store
