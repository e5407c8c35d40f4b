"""Files of checkpoints: published by task managers, and fetched again; what they are for the manifests say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from weir.checkpoints.digests import digest_of
from weir.checkpoints.errors import checkpoint_error
from weir.checkpoints.file_checks import FileChecks, check_file, damaged
from weir.checkpoints.files import FilePlace, check_path
from weir.checkpoints.layout import FILES
from weir.protocol.checkpoints.manifest import FileRef

Result = TypeVar("Result")


class CheckpointFiles:
    """The files of a checkpoint store. Methods may be called from any thread.

    All of them raise CheckpointError with the file, the store and the mend if the place fails.
    """

    def __init__(self, place: FilePlace) -> None:
        self._place = place

    @property
    def location(self) -> str:
        """Where the store is, for messages; no credentials."""
        return self._place.location

    def links_to(self, directory: Path) -> bool:
        """Return whether files come from and go to a directory as links, which takes no time, whatever their size."""
        return self._do("", lambda: self._place.links_to(directory.absolute()))

    def publish(self, local_file: Path, relative_path: str) -> FileRef:
        """Bring one file here: linked if it is on the same file system, else copied. See :meth:`publish_all`."""
        return self.publish_all([(local_file, relative_path)])[0]

    def publish_all(self, items: Sequence[tuple[Path, str]]) -> list[FileRef]:
        """Bring files (file, path below the store) here, durably; again is harmless. They must not change later."""
        if not items:
            return []
        refs = self._do(
            str(items[0][0]),
            lambda: [
                FileRef(check_path(path), file.stat().st_size, self._digest_of(file)) for file, path in items
            ],
        )
        self._do(items[0][1], lambda: self._place.put(items))
        return refs

    def give_up(self) -> None:
        """Nobody needs any more what is being published: it ends soon, with a CheckpointError."""
        self._place.give_up()

    def present(self, files: Sequence[FileRef]) -> list[bool]:
        """Return whether each of these files is here, in its full size."""
        sizes = self._do(FILES, lambda: self._place.sizes([check_path(file.path) for file in files]))
        return [size == file.size_bytes for file, size in zip(files, sizes, strict=True)]

    def fetch(self, file: FileRef, target: Path) -> None:
        """Bring one file to this machine, as a link if possible: nobody may change it. See :meth:`fetch_all`."""
        self.fetch_all([(file, target)])

    def fetch_all(
        self, items: Sequence[tuple[FileRef, Path]], *, own: bool = False, checks: FileChecks | None = None
    ) -> None:
        """Bring files to this machine, several at a time where they are downloaded.

        Args:
            items: files and their targets.
            own: make copies that the caller may change; else links if possible.
            checks: may read what is large later; None: all files are read now.

        Raises:
            CheckpointError: also if a file is not as it was when it was published.
        """
        if not items:
            return
        wanted = [(check_path(file.path), target) for file, target in items]
        about, paths = f"{wanted[0][0]} ({len(wanted)} files)", [path for path, _ in wanted]
        self._do(about, lambda: self._place.get(wanted, own=own), paths)
        for file, target in items:
            size_bytes = target.stat().st_size
            if size_bytes != file.size_bytes:
                why = f"it has {size_bytes} bytes instead of {file.size_bytes}"
                raise damaged(self.location, file.path, why)
        if checks is not None:
            checks.check(items)
            return
        for file, target in items:
            check_file(self.location, file, target)

    def read_ranges(self, ranges: Sequence[tuple[FileRef, int, int]]) -> list[bytes]:
        """Parts (file, offset, bytes) of files, several at a time; a digest says nothing of a part.

        Raises:
            CheckpointError: also if a file is shorter than it was when it was published.
        """
        wanted = [(check_path(file.path), offset, size_bytes) for file, offset, size_bytes in ranges]
        paths = list(dict.fromkeys(path for path, _, _ in wanted))
        found = self._do(paths[0], lambda: self._place.read_ranges(wanted), paths) if wanted else []
        for (path, offset, size_bytes), data in zip(wanted, found, strict=True):
            if len(data) != size_bytes:
                raise damaged(
                    self.location, path, f"it has {len(data)} of {size_bytes} bytes from {offset:,} on"
                )
        return found

    def copy_to(self, paths: Sequence[tuple[str, str]], other: CheckpointFiles) -> None:
        """Copy files (path here, path there) to another store, durably."""
        if paths:
            about = f"{paths[0][0]} ({len(paths)} files to {other.location})"
            self._do(about, lambda: self._place.copy_to(paths, other._place), [path for path, _ in paths])

    def _digest_of(self, file: Path) -> str:
        digest = digest_of(file, lambda: self._place.is_given_up)
        self._place.check_wanted()
        return digest

    def _do(self, path: str, work: Callable[[], Result], among: Sequence[str] = ()) -> Result:
        """Do what may fail; ``path`` is told then, or which file of ``among`` is not there."""
        try:
            return work()
        except (OSError, ValueError, NotImplementedError) as error:
            if len(among) > 1 and isinstance(error, FileNotFoundError):
                path = self._first_absent(among) or path
            raise checkpoint_error(error, self.location, path) from error

    def _first_absent(self, paths: Sequence[str]) -> str:
        try:
            sizes = self._place.sizes(paths)
        except (OSError, ValueError, NotImplementedError):
            return ""
        return next((path for path, size in zip(paths, sizes, strict=True) if size is None), "")
