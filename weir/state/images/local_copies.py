"""Files that are in a checkpoint store on another file system, kept as links beside the store that they came from.

A task manager that outlives a failure opens its own image again without fetching it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection
from pathlib import Path

from weir.protocol.checkpoints.manifest import FileRef
from weir.state.stores.directory_lock import PUBLISHED_NAME


class LocalCopies:
    """See the module; ``directory`` is the store's claimed one. A link that cannot be made is done without."""

    def __init__(self, directory: Path) -> None:
        self._folder = directory / PUBLISHED_NAME

    def _at(self, path: str) -> Path:
        return self._folder / path.replace("/", "+")

    def add(self, file: FileRef, local_file: Path) -> None:
        """Keep a file that is in the checkpoint store."""
        with contextlib.suppress(OSError):
            self._folder.mkdir(exist_ok=True)
            os.link(local_file, self._at(file.path))

    def bring(self, file: FileRef, target: Path) -> bool:
        """Link a file to ``target``; False: it is not here."""
        kept = self._at(file.path)
        try:
            if kept.stat().st_size != file.size_bytes:
                return False
            os.link(kept, target)
        except OSError:
            return False
        return True

    def has(self, file: FileRef) -> bool:
        """Whether a file is here, by name and size."""
        try:
            return self._at(file.path).stat().st_size == file.size_bytes
        except OSError:
            return False

    def keep_only(self, paths: Collection[str]) -> None:
        """Forget all files but these."""
        names = {self._at(path).name for path in paths}
        with contextlib.suppress(FileNotFoundError):
            for name in set(os.listdir(self._folder)) - names:
                (self._folder / name).unlink(missing_ok=True)
