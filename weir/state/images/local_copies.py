"""Files that are in a checkpoint store on another file system, kept beside the store of a task manager.

Those that it has published itself are links: a task manager that outlives a failure opens its own image again without
fetching it. Those of other task managers were fetched, so as to take over from them (docs/design/0020).
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Collection
from pathlib import Path

from weir.protocol.checkpoints.manifest import FileRef
from weir.state.stores.directory_lock import PUBLISHED_NAME, STANDBY_NAME


class LocalCopies:
    """Local copies in ``folder``, in a store's claimed directory. A file that cannot be kept is done without."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def published(cls, directory: Path) -> LocalCopies:
        """Return those that the store of this directory has published or fetched; its publisher tells which stay."""
        return cls(directory / PUBLISHED_NAME)

    @classmethod
    def standby(cls, directory: Path) -> LocalCopies:
        """Return those of other task managers; whoever fetches them tells which are kept."""
        return cls(directory / STANDBY_NAME)

    def at(self, path: str) -> Path:
        """Where the file is kept that has this path in the checkpoint store."""
        return self.folder / path.replace("/", "+")

    def add(self, file: FileRef, local_file: Path) -> None:
        """Keep a file that is in the checkpoint store."""
        with contextlib.suppress(OSError):
            self.folder.mkdir(exist_ok=True)
            os.link(local_file, self.at(file.path))

    def bring(self, file: FileRef, target: Path, *, own: bool = False) -> bool:
        """Link a file to ``target``, or copy it where the caller may change it; False: it is not here."""
        kept = self.at(file.path)
        try:
            if kept.stat().st_size != file.size_bytes:
                return False
            if own:
                shutil.copyfile(kept, target)
            else:
                os.link(kept, target)
        except OSError:
            return False
        return True

    def has(self, file: FileRef) -> bool:
        """Return whether a file is here, by name and size."""
        try:
            return self.at(file.path).stat().st_size == file.size_bytes
        except OSError:
            return False

    def drop(self, file: FileRef) -> None:
        """Forget a file; its content is not what was published."""
        with contextlib.suppress(OSError):
            self.at(file.path).unlink()

    def keep_only(self, paths: Collection[str]) -> None:
        """Forget all files but these."""
        names = {self.at(path).name for path in paths}
        with contextlib.suppress(FileNotFoundError):
            for name in set(os.listdir(self.folder)) - names:
                (self.folder / name).unlink(missing_ok=True)
