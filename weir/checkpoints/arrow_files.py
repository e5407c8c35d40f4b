"""Checkpoint files at a ``pyarrow.fs`` location, S3 above all: copied, several at a time.

Not every service can create a file only if it is absent, and ``pyarrow.fs`` does not offer it for those that
can. :meth:`ArrowFiles.create` therefore looks first and writes then. That is safe because only one process
creates manifests: the control plane that holds the leadership.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow import fs

from weir.checkpoints.errors import checkpoint_error
from weir.checkpoints.files import DRAFT_PREFIX, FilePlace, Listed

#: Files that are copied at the same time, by all threads together.
_TRANSFERS_MAX = 8
_COPY_BYTES = 4 << 20
#: Ranges that are read at the same time, nearly as many as S3 clients of Arrow have connections; and files that stay
#: open for it.
_RANGES_MAX, _OPENED_MAX = 24, 2_000
#: Services where a file appears when its stream is closed: no draft is needed.
_OBJECT_STORES = ("s3", "gcs", "abfs")

Item = TypeVar("Item")


def open_arrow_files(uri: str, below: Sequence[str]) -> ArrowFiles:
    """The place of a URI and of a folder below it.

    Raises:
        CheckpointError: pyarrow does not understand the URI.
    """
    location = _without_credentials(uri)
    try:
        filesystem, root = fs.FileSystem.from_uri(uri)
    except (OSError, ValueError, NotImplementedError) as error:
        # Its text may have the URI in it, and that the credentials.
        text = str(error).replace(uri, location)
        raise checkpoint_error(ValueError(text), location) from error
    root = "/".join([root.rstrip("/"), *below])
    return ArrowFiles(_opening_late(filesystem), root, "/".join([location, *below]))


def _opening_late(filesystem: Any) -> Any:
    """The same file system, which begins a file at S3 when there is more of it than one request takes (10 MiB).

    A smaller one is one request then, and not three that follow one another.
    """
    if filesystem.type_name != "s3":
        return filesystem
    # A URI cannot say it, nor can the object be changed.
    make, (options,) = filesystem.__reduce__()
    return make({**options, "allow_delayed_open": True})


def _without_credentials(uri: str) -> str:
    parts = urlsplit(uri)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}".rstrip("/")


class ArrowFiles(FilePlace):
    """Checkpoint files at a location of ``pyarrow.fs``; :func:`open_arrow_files` makes the object."""

    def __init__(self, filesystem: Any, root: str, location: str) -> None:
        self.filesystem = filesystem
        self.root = root
        self.location = location
        self._is_object_store = filesystem.type_name in _OBJECT_STORES
        self._pool = ThreadPoolExecutor(_TRANSFERS_MAX, thread_name_prefix="checkpoint-files")
        #: Rows wait for ranges: these do not wait for files.
        self._range_pool = ThreadPoolExecutor(_RANGES_MAX, thread_name_prefix="checkpoint-ranges")
        self._opened_lock = threading.Lock()
        #: Files of which ranges were read, the last used last.
        self._opened: OrderedDict[str, Any] = OrderedDict()

    def _at(self, path: str) -> str:
        return f"{self.root}/{path}"

    def links_to(self, directory: Path) -> bool:
        """Never."""
        return False

    def create(self, path: str, data: bytes) -> bool:
        """Write a small file unless it is there; see the module for the race that this leaves open."""
        if self._info(self._at(path)).type != fs.FileType.NotFound:
            return False
        self.write(path, [data])
        return True

    def read(self, path: str) -> bytes:
        """The content of a small file."""
        with self.filesystem.open_input_stream(self._at(path)) as stream:
            data: bytes = stream.read()
        return data

    def read_ranges(self, ranges: Sequence[tuple[str, int, int]]) -> list[bytes]:
        """Parts of files; a file that was read is asked for its size once, which is a request of its own."""
        return self._all(lambda each: self._read_range(*each), ranges, self._range_pool)

    def _read_range(self, path: str, offset: int, size_bytes: int) -> bytes:
        with self._opened_lock:
            opened = self._opened.get(path)
            if opened is not None:
                self._opened.move_to_end(path)
        if opened is None:
            opened = self.filesystem.open_input_file(self._at(path))
            with self._opened_lock:
                self._opened[path] = opened
                while len(self._opened) > _OPENED_MAX:
                    # Whoever reads it still holds it.
                    self._opened.popitem(last=False)
        data: bytes = opened.read_at(size_bytes, offset)
        return data

    def put(self, items: Sequence[tuple[Path, str]]) -> None:
        """Upload files; what is there is replaced by the same bytes."""
        self._all(self._upload, items)

    def _upload(self, item: tuple[Path, str]) -> None:
        source, path = item
        self.check_wanted()
        with source.open("rb") as stream:

            def piece() -> bytes:
                self.check_wanted()
                return stream.read(_COPY_BYTES)

            self.write(path, iter(piece, b""))

    def get(self, items: Sequence[tuple[str, Path]], *, own: bool = False) -> None:
        """Download files."""
        self._all(self._download, items)

    def _download(self, item: tuple[str, Path]) -> None:
        path, target = item
        with (
            self.filesystem.open_input_stream(self._at(path)) as stream,
            pa.OSFile(str(target), "wb") as out,
        ):
            while chunk := stream.read_buffer(_COPY_BYTES):
                out.write(chunk)

    def copy_to(self, paths: Sequence[tuple[str, str]], other: FilePlace) -> None:
        """Copy files to another place; within one service it copies them itself."""
        self._all(lambda item: self._copy(item, other), paths)

    def _copy(self, item: tuple[str, str], other: FilePlace) -> None:
        path, there = item
        if isinstance(other, ArrowFiles) and self.filesystem.equals(other.filesystem):
            self.filesystem.copy_file(self._at(path), other.folder_made(there))
            return
        with self.filesystem.open_input_stream(self._at(path)) as stream:
            other.write(there, iter(lambda: stream.read(_COPY_BYTES), b""))

    def folder_made(self, path: str) -> str:
        """The file's name in the file system, with its folder created where folders exist."""
        name = self._at(path)
        if not self._is_object_store:
            self.filesystem.create_dir(name.rpartition("/")[0], recursive=True)
        return name

    def write(self, path: str, chunks: Iterable[bytes]) -> None:
        """Write a file in one step; after an error nothing stays of it."""
        name = self.folder_made(path)
        folder, _, last = name.rpartition("/")
        draft = name if self._is_object_store else f"{folder}/{DRAFT_PREFIX}{last}-{secrets.token_hex(6)}"
        try:
            with self.filesystem.open_output_stream(draft) as stream:
                for chunk in chunks:
                    stream.write(chunk)
            if draft != name:
                self.filesystem.move(draft, name)
        except BaseException:
            # Closing the stream may have made a file of what was written so far.
            with contextlib.suppress(OSError):
                self.filesystem.delete_file(draft)
            raise

    def sizes(self, paths: Sequence[str]) -> list[int | None]:
        """Sizes in bytes; None: the file does not exist."""

        def size(path: str) -> int | None:
            info = self._info(self._at(path))
            return info.size if info.type == fs.FileType.File else None

        return self._all(size, paths)

    def folders(self, folder: str) -> list[str]:
        """Names of the folders in a folder; none if it does not exist."""
        return [info.base_name for info in self._list(folder, False) if info.type == fs.FileType.Directory]

    def files(self, folder: str) -> list[Listed]:
        """Return all files below a folder."""
        cut = len(self.root) + 1
        return [
            Listed(info.path[cut:], info.size)
            for info in self._list(folder, True)
            if info.type == fs.FileType.File
        ]

    def _list(self, folder: str, recursive: bool) -> list[Any]:
        selector = fs.FileSelector(self._at(folder), allow_not_found=True, recursive=recursive)
        infos: list[Any] = self.filesystem.get_file_info(selector)
        return infos

    def _info(self, name: str) -> Any:
        return self.filesystem.get_file_info(name)

    def delete(self, paths: Iterable[str]) -> None:
        """Delete files."""

        def remove(path: str) -> None:
            with contextlib.suppress(FileNotFoundError):
                self.filesystem.delete_file(self._at(path))

        self._all(remove, list(paths))

    def delete_folder(self, folder: str) -> None:
        """Delete a folder and everything in it."""
        with contextlib.suppress(FileNotFoundError):
            self.filesystem.delete_dir(self._at(folder))

    def _all(
        self, work: Callable[[Item], Any], items: Sequence[Item], pool: ThreadPoolExecutor | None = None
    ) -> list[Any]:
        """Several at a time; the first error is raised when none is under way any more."""
        if len(items) == 1:
            return [work(items[0])]
        futures = [(pool or self._pool).submit(work, item) for item in items]
        errors = [error for future in futures if (error := future.exception()) is not None]
        if errors:
            raise errors[0]
        return [future.result() for future in futures]
