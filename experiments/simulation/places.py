"""A place for the files of checkpoints that is in memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from weir.checkpoints.files import FilePlace, Listed


class MemoryPlace(FilePlace):
    """See ``FilePlace``."""

    def __init__(self) -> None:
        self.location = "the simulated store"
        self._files: dict[str, bytes] = {}

    def links_to(self, directory: Path) -> bool:
        """See ``FilePlace``."""
        return False

    def create(self, path: str, data: bytes) -> bool:
        """See ``FilePlace``."""
        return self._files.setdefault(path, data) is data

    def read(self, path: str) -> bytes:
        """See ``FilePlace``."""
        if path not in self._files:
            raise FileNotFoundError(path)
        return self._files[path]

    def read_ranges(self, ranges: Sequence[tuple[str, int, int]]) -> list[bytes]:
        """See ``FilePlace``."""
        return [self.read(path)[offset : offset + size_bytes] for path, offset, size_bytes in ranges]

    def write(self, path: str, chunks: Iterable[bytes]) -> None:
        """See ``FilePlace``."""
        self._files[path] = b"".join(chunks)

    def put(self, items: Sequence[tuple[Path, str]]) -> None:
        """See ``FilePlace``."""
        for source, path in items:
            self._files[path] = source.read_bytes()

    def get(self, items: Sequence[tuple[str, Path]], *, own: bool = False) -> None:
        """See ``FilePlace``."""
        for path, target in items:
            target.write_bytes(self.read(path))

    def copy_to(self, paths: Sequence[tuple[str, str]], other: FilePlace) -> None:
        """See ``FilePlace``."""
        for here, there in paths:
            other.write(there, [self.read(here)])

    def sizes(self, paths: Sequence[str]) -> list[int | None]:
        """See ``FilePlace``."""
        return [len(self._files[path]) if path in self._files else None for path in paths]

    def folders(self, folder: str) -> list[str]:
        """See ``FilePlace``."""
        start = f"{folder}/"
        below = (path.removeprefix(start) for path in self._files if path.startswith(start))
        return sorted({path.split("/")[0] for path in below if "/" in path})

    def files(self, folder: str) -> list[Listed]:
        """See ``FilePlace``."""
        return [
            Listed(path, len(data)) for path, data in self._files.items() if path.startswith(f"{folder}/")
        ]

    def delete(self, paths: Iterable[str]) -> None:
        """See ``FilePlace``."""
        for path in paths:
            self._files.pop(path, None)

    def delete_folder(self, folder: str) -> None:
        """See ``FilePlace``."""
        self.delete([listed.path for listed in self.files(folder)])
