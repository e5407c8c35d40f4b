"""Images of a RocksDB store: links to its tables beside copies of its small files, without keeping the GIL."""

from __future__ import annotations

import logging
import os
import shutil
import threading
from pathlib import Path

from weir.state.stores.rocksdb_manifest import Manifest, UnknownManifestError

log = logging.getLogger(__name__)

_CURRENT = "CURRENT"
_OPTIONS_PREFIX = "OPTIONS-"
#: Written by rocksdict.
_CONFIG = "rocksdict-config.json"
#: Each time a file is gone, RocksDB has merged tables, or begun another manifest, which takes it a while.
_TRIES_MAX = 100


class ImageTaker:
    """The taker of an open store's images. :meth:`take` may be called by any thread."""

    def __init__(self, data_path: Path) -> None:
        """``data_path``: where RocksDB's files are."""
        self._data_path = data_path
        self._lock = threading.Lock()
        self._manifest: Manifest | None = None

    def take(self, directory: Path) -> bool:
        """Make an image of what RocksDB has written into tables, in a directory that is created.

        Nothing is synced: whoever publishes the image does that. False: RocksDB's files have a form that is not known
        here, and nothing was created.

        Raises:
            OSError: the directory cannot be written.
        """
        directory.mkdir()
        with self._lock:
            try:
                manifest, content = self._link_tables(directory)
            except UnknownManifestError as error:
                log.warning("RocksDB has to make images itself, which holds up rows: %s", error)
                shutil.rmtree(directory)
                return False
        (directory / manifest.path.name).write_bytes(content)
        (directory / _CURRENT).write_text(f"{manifest.path.name}\n")
        options = [name for name in os.listdir(self._data_path) if name.startswith(_OPTIONS_PREFIX)]
        for name in (*sorted(options)[-1:], _CONFIG):
            shutil.copyfile(self._data_path / name, directory / name)
        return True

    def _link_tables(self, directory: Path) -> tuple[Manifest, bytes]:
        """Link all tables that the manifest names; returns it, read as far as that, and so much of its content."""
        linked: set[int] = set()
        for tries_left in reversed(range(_TRIES_MAX)):
            try:
                manifest = self._read_manifest()
                for number in sorted(manifest.tables - linked):
                    os.link(self._data_path / _table_name(number), directory / _table_name(number))
                    linked.add(number)
                with manifest.path.open("rb") as stream:
                    content = stream.read(manifest.size_bytes)
            except FileNotFoundError:
                if not tries_left:
                    raise
                continue
            for number in linked - manifest.tables:
                (directory / _table_name(number)).unlink()
            return manifest, content
        raise AssertionError("unreachable")

    def _read_manifest(self) -> Manifest:
        # RocksDB begins another manifest when one has become long.
        path = self._data_path / (self._data_path / _CURRENT).read_text().strip()
        if self._manifest is None or self._manifest.path != path:
            self._manifest = Manifest(path)
        self._manifest.read_on()
        return self._manifest


def _table_name(number: int) -> str:
    return f"{number:06d}.sst"
