"""Where the files of checkpoints are: what a place must do.

Paths are relative to the place, with ``/``. A file appears whole or not at all, and never changes afterwards.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from weir.errors import CheckpointError

#: Begins the name of a file that is being written.
DRAFT_PREFIX = ".draft-"


@dataclass(frozen=True, slots=True)
class Listed:
    """A file of a place."""

    path: str
    size_bytes: int


class FilePlace(ABC):
    """A directory or a bucket. Methods may be called from any thread; they raise OSError, or pyarrow's ValueError."""

    #: Where it is, for messages: no credentials.
    location: str
    #: Whether nobody needs any more what is on its way here; see :meth:`give_up`.
    is_given_up = False

    def give_up(self) -> None:
        """Whoever is in :meth:`put` raises soon, between files and pieces of them; later calls do at once."""
        self.is_given_up = True

    def check_wanted(self) -> None:
        """Called before each file and piece that goes here.

        Raises:
            CheckpointError: nobody needs it any more.
        """
        if self.is_given_up:
            raise CheckpointError(
                f"checkpoint store {self.location}: the upload was given up, as the job ends"
            )

    @abstractmethod
    def links_to(self, directory: Path) -> bool:
        """Return whether links can be made between it and a directory of this machine: they are on one file system."""

    @abstractmethod
    def create(self, path: str, data: bytes) -> bool:
        """Write a small file durably unless it is there; False: it is."""

    @abstractmethod
    def read(self, path: str) -> bytes:
        """The content of a small file.

        Raises:
            FileNotFoundError: it does not exist.
        """

    @abstractmethod
    def read_ranges(self, ranges: Sequence[tuple[str, int, int]]) -> list[bytes]:
        """Parts (path, offset, bytes) of files that never change, several at a time; less where a file ends."""

    @abstractmethod
    def write(self, path: str, chunks: Iterable[bytes]) -> None:
        """Write a file durably; one that is there is replaced in one step."""

    @abstractmethod
    def put(self, items: Sequence[tuple[Path, str]]) -> None:
        """Bring local files here (file, path), durably. A file that is there with the same size stays."""

    @abstractmethod
    def get(self, items: Sequence[tuple[str, Path]], *, own: bool = False) -> None:
        """Bring files (path, target) to this machine.

        Unless they are wanted as the caller's ``own``, they are linked where that is possible: nobody may change them.
        """

    @abstractmethod
    def copy_to(self, paths: Sequence[tuple[str, str]], other: FilePlace) -> None:
        """Copy files (path here, path there) to another place, durably."""

    @abstractmethod
    def sizes(self, paths: Sequence[str]) -> list[int | None]:
        """Sizes in bytes; None: the file does not exist."""

    @abstractmethod
    def folders(self, folder: str) -> list[str]:
        """Names of the folders in a folder; none if it does not exist."""

    @abstractmethod
    def files(self, folder: str) -> list[Listed]:
        """Return all files below a folder, however deep; none if it does not exist."""

    @abstractmethod
    def delete(self, paths: Iterable[str]) -> None:
        """Delete files; absent ones are ignored."""

    @abstractmethod
    def delete_folder(self, folder: str) -> None:
        """Delete a folder and everything in it."""


def uri_below(uri: str, *below: str) -> str:
    """The directory or URI of a folder below another; options of a URI stay at its end."""
    path, mark, options = uri.partition("?") if "://" in uri else (uri, "", "")
    return "/".join([path.rstrip("/") or "/", *below]) + mark + options


def check_path(path: str) -> str:
    """The path, if it stays below the place: manifests come from outside.

    Raises:
        CheckpointError: it is absolute or leads out.
    """
    parts = path.split("/")
    if not path or "\0" in path or any(part in ("", ".", "..") for part in parts):
        raise CheckpointError(f"a checkpoint names the file {path!r}, which is not a path below the store")
    return path
