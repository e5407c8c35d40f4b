"""Where a file sink writes: a directory, or any URI that ``pyarrow.fs`` understands, S3 above all.

Names are relative to the place, with ``/``. A *hidden* file begins with a dot, is directly in the place, and is
durable once its stream went through :meth:`Place.seal`. :meth:`Place.publish` makes it a visible one in a
single step: in a directory it is renamed; an object store copies it itself, and the copy appears whole.
"""

from __future__ import annotations

import contextlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow import fs

from weir.errors import InputError
from weir.process.disk import sync
from weir.redaction import redacted_text

#: Services where a file appears when its stream is closed, and that have no folders.
_OBJECT_STORES = ("s3", "gcs", "abfs")
_BUFFER_BYTES = 1 << 20


class Place(ABC):
    """Methods raise OSError (pyarrow's too), or InputError where the cause is known; called by any thread."""

    #: For messages: no credentials.
    location: str

    @abstractmethod
    def prepare(self, probe: str) -> None:
        """Create the place, and see that it can be written, with a hidden file of this name."""

    @abstractmethod
    def create(self, name: str) -> Any:
        """A stream (``write``, ``flush``, ``close``) into a new hidden file; one of this name is replaced."""

    @abstractmethod
    def seal(self, streams: Sequence[Any]) -> None:
        """Close streams, and bring their files to the disk: they survive a power cut from now on."""

    @abstractmethod
    def open(self, name: str) -> Any:
        """A hidden file to read from.

        Raises:
            FileNotFoundError: there is none.
        """

    @abstractmethod
    def publish(self, hidden: str, visible: str) -> None:
        """Make a hidden file visible; nothing if it is gone.

        Raises:
            InputError: the visible name is another file's.
        """

    @abstractmethod
    def settle(self, visible: list[str]) -> None:
        """Bring the names of published files to the disk."""

    @abstractmethod
    def hidden(self) -> list[str]:
        """Names of hidden files."""

    @abstractmethod
    def visible(self) -> Iterator[str]:
        """Names of all other files, also in folders."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove a file; nothing if there is none."""

    def at(self, name: str) -> str:
        """A file, for messages."""
        return f"{self.location}/{name}"


def open_place(path: str) -> Place:
    """The place of a directory or a URI; nothing is created yet.

    Raises:
        InputError: the URI is not understood.
    """
    parts = urlsplit(path)
    if "://" not in path:
        return LocalPlace(Path(path).expanduser())
    if parts.scheme == "file":
        return LocalPlace(Path(parts.path))
    location = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}".rstrip("/")
    try:
        filesystem, root = fs.FileSystem.from_uri(path)
    except (OSError, ValueError, NotImplementedError) as error:
        # Its text may have the URI in it, and that the credentials.
        text = redacted_text(str(error).replace(path, location))
        cause = OSError(text) if isinstance(error, OSError) else None
        raise InputError(f"sink: {location} is no place to write to: {text}") from cause
    return ArrowPlace(filesystem, root.rstrip("/"), location)


def uri_beside(own: str, location: str) -> str:
    """Return the URI of another place, of which only the location is known: credentials and settings are our place's.

    Args:
        own: URI or directory of our place.
        location: of the other one, as :attr:`Place.location` has it.
    """
    ours, theirs = urlsplit(own), urlsplit(location)
    if "://" not in location or ours.scheme != theirs.scheme:
        return location
    user, at, _ = ours.netloc.rpartition("@")
    return theirs._replace(netloc=f"{user}{at}{theirs.netloc}", query=ours.query).geturl()


class LocalPlace(Place):
    """A directory of this machine, or one that is mounted."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.location = str(directory)

    def prepare(self, probe: str) -> None:
        """Create the directory."""
        self._directory.mkdir(parents=True, exist_ok=True)
        with open(self._directory / probe, "wb") as file:
            os.unlink(file.name)

    def create(self, name: str) -> Any:
        """A fresh file: whoever still has an old one of this name open does not write into ours."""
        path = self._directory / name
        path.unlink(missing_ok=True)
        return open(path, "xb", buffering=_BUFFER_BYTES)

    def seal(self, streams: Sequence[Any]) -> None:
        """Sync the files, then the directory: only then a name is safe from a power cut."""
        for stream in streams:
            stream.flush()
            os.fsync(stream.fileno())
            stream.close()
        sync(self._directory)

    def open(self, name: str) -> Any:
        """Mapped into memory."""
        return pa.memory_map(str(self._directory / name))

    def publish(self, hidden: str, visible: str) -> None:
        """Rename it."""
        source, target = self._directory / hidden, self._directory / visible
        if not source.exists():
            return
        if target.exists():
            # Unless another one that commits the same has just renamed it.
            if not source.exists():
                return
            raise InputError(f"sink: {target} exists already; remove it or choose another directory")
        if "/" in visible:
            target.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            os.rename(source, target)

    def settle(self, visible: list[str]) -> None:
        """Sync the directories, from the files' upwards."""
        folders = {self._directory}
        for name in visible:
            folder = (self._directory / name).parent
            while folder not in folders:
                folders.add(folder)
                folder = folder.parent
        for folder in sorted(folders, key=lambda path: len(path.parts), reverse=True):
            with contextlib.suppress(FileNotFoundError):
                sync(folder)

    def hidden(self) -> list[str]:
        """Names of hidden files."""
        try:
            return [name for name in os.listdir(self._directory) if name.startswith(".")]
        except FileNotFoundError:
            return []

    def visible(self) -> Iterator[str]:
        """Names of all other files, in the order of the walk."""
        for folder, folders, names in os.walk(self._directory):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            below = Path(folder).relative_to(self._directory)
            yield from (str(below / name) for name in sorted(names) if not name.startswith("."))

    def remove(self, name: str) -> None:
        """Unlink it."""
        (self._directory / name).unlink(missing_ok=True)


class ArrowPlace(Place):
    """A ``pyarrow.fs`` location. S3 copies objects of at most 5 GB; roll before that."""

    def __init__(self, filesystem: Any, root: str, location: str) -> None:
        self._filesystem = filesystem
        self._root = root
        self.location = location
        self._has_folders = filesystem.type_name not in _OBJECT_STORES

    def prepare(self, probe: str) -> None:
        """Write a small file, and delete it."""
        if self._has_folders:
            self._filesystem.create_dir(self._root, recursive=True)
        with self._filesystem.open_output_stream(self._at(probe)) as stream:
            stream.write(b".")
        self.remove(probe)

    def create(self, name: str) -> Any:
        """An upload; the object exists when the stream is closed."""
        return self._filesystem.open_output_stream(self._at(name), buffer_size=_BUFFER_BYTES)

    def seal(self, streams: Sequence[Any]) -> None:
        """End the uploads."""
        for stream in streams:
            stream.close()

    def open(self, name: str) -> Any:
        """Read from its beginning."""
        return self._filesystem.open_input_stream(self._at(name), buffer_size=_BUFFER_BYTES)

    def publish(self, hidden: str, visible: str) -> None:
        """Let the store copy the object, then delete the hidden one; a move where there are folders."""
        source, target = self._at(hidden), self._at(visible)
        if self._filesystem.get_file_info(source).type == fs.FileType.NotFound:
            return
        try:
            if self._has_folders:
                self._filesystem.create_dir(target.rpartition("/")[0], recursive=True)
                self._filesystem.move(source, target)
            else:
                # A copy that was made before a crash is made again: its bytes are the same.
                self._filesystem.copy_file(source, target)
                self._filesystem.delete_file(source)
        except FileNotFoundError:
            return

    def settle(self, visible: list[str]) -> None:
        """Nothing."""

    def hidden(self) -> list[str]:
        """Names of hidden files."""
        return [info.base_name for info in self._list(recursive=False) if info.base_name.startswith(".")]

    def visible(self) -> Iterator[str]:
        """Names of all other files."""
        cut = len(self._root) + 1
        names = sorted(info.path[cut:] for info in self._list(recursive=True))
        return (name for name in names if not name.startswith("."))

    def remove(self, name: str) -> None:
        """Delete it."""
        with contextlib.suppress(FileNotFoundError):
            self._filesystem.delete_file(self._at(name))

    def _list(self, *, recursive: bool) -> list[Any]:
        selector = fs.FileSelector(self._root, allow_not_found=True, recursive=recursive)
        return [info for info in self._filesystem.get_file_info(selector) if info.type == fs.FileType.File]

    def _at(self, name: str) -> str:
        return f"{self._root}/{name}"
