"""Where segments lie: a directory, or memory that ends with the process."""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from log_broker.errors import LogDamagedError, LogWriteError
from weir.process.disk import sync
from weir.protocol.log.entries import checksum
from weir.security.private_files import private_directory

_NAME_DIGITS = 20
#: Of ``fallocate``: reserve blocks behind the end, and leave the end where it is; Python has only what moves it.
_KEEP_SIZE = 1
_MEMORY_ROOM_BYTES = 1 << 40


def _fallocate() -> Callable[[int, int, int, int], int] | None:
    call = getattr(ctypes.CDLL(None), "fallocate", None)
    if call is not None:
        call.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    return call


_FALLOCATE = _fallocate()


class Place(Protocol):
    """Holds the files of one replica. Methods block."""

    @property
    def name(self) -> str:
        """The place, for messages."""

    def bases(self) -> list[int]:
        """Offsets at which segments begin, ascending."""

    def open(self, base_offset: int, *, is_new: bool = False) -> int:
        """Open the file of a segment, which is made if it is new; returns a descriptor, which the caller closes."""

    def reserve(self, descriptor: int, start: int, size: int) -> None:
        """Set room aside for bytes of a segment, whose length does not change; nothing where that is not possible."""

    def save(self, name: str, document: dict[str, Any], *, is_synced: bool = False) -> None:
        """Replace a small document as a whole."""

    def load(self, name: str) -> dict[str, Any] | None:
        """Read a document; None: there is none."""

    def discard(self, name: str) -> None:
        """Remove a document, which also a full disk can; nothing if it is absent."""

    def room_bytes(self) -> int:
        """How many more bytes there is room for."""

    def sync(self) -> None:
        """Let names of files be on the disk."""

    def remove(self, base_offset: int) -> None:
        """Remove a segment and its documents."""


def segment_name(base_offset: int) -> str:
    """Name of a segment and, with an ending, of its documents."""
    return f"{base_offset:0{_NAME_DIGITS}d}"


class DirectoryPlace:
    """A directory of its own."""

    def __init__(self, path: Path) -> None:
        """Make the directory if it is absent.

        Raises:
            LogWriteError: it cannot be made.
        """
        self.path = path
        try:
            private_directory(path)
        except OSError as error:
            raise LogWriteError(f"{path}: {error.strerror}; choose another --dir") from error

    @property
    def name(self) -> str:
        """The directory."""
        return str(self.path)

    def bases(self) -> list[int]:
        """Offsets at which segments begin, ascending."""
        return sorted(int(file.stem) for file in self.path.glob("*.log"))

    def open(self, base_offset: int, *, is_new: bool = False) -> int:
        """Open the file of a segment, which is made if it is new.

        Raises:
            LogWriteError: it cannot be opened.
            LogDamagedError: it is gone.
        """
        path = self.path / f"{segment_name(base_offset)}.log"
        try:
            return os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if is_new else 0), 0o644)
        except FileNotFoundError as error:
            if is_new:
                raise LogWriteError(f"{path}: its directory is gone; make it, and start again") from error
            raise LogDamagedError(f"{path} is absent") from error
        except OSError as error:
            raise LogWriteError(f"{path}: {error.strerror}; make room or mend the directory") from error

    def reserve(self, descriptor: int, start: int, size: int) -> None:
        """Set blocks aside, so that a segment lies in one piece and each write has less to do.

        A full disk, or a file system without this, is no error: the write itself will tell.
        """
        if _FALLOCATE is not None:
            _FALLOCATE(descriptor, _KEEP_SIZE, start, size)

    def save(self, name: str, document: dict[str, Any], *, is_synced: bool = False) -> None:
        """Write another file, with a checksum, and rename it.

        Raises:
            LogWriteError: it cannot be written.
        """
        body = json.dumps(document, separators=(",", ":")).encode()
        path, fresh = self.path / name, self.path / f".{name}.unfinished"
        try:
            with open(fresh, "wb") as file:
                file.write(b"%08x\n" % checksum(body) + body)
                file.flush()
                if is_synced:
                    os.fsync(file.fileno())
            os.replace(fresh, path)
            if is_synced:
                # Else another name, or none, may be there after the machine went down.
                self.sync()
        except OSError as error:
            fresh.unlink(missing_ok=True)
            raise LogWriteError(f"{path}: {error.strerror}; make room or mend the directory") from error

    def load(self, name: str) -> dict[str, Any] | None:
        """Read a document; None: there is none.

        Raises:
            LogDamagedError: it is not what was written.
        """
        try:
            content = (self.path / name).read_bytes()
        except FileNotFoundError:
            return None
        crc, _, body = content.partition(b"\n")
        if crc != b"%08x" % checksum(body):
            raise LogDamagedError(f"{self.path / name} has another checksum than was written")
        document: dict[str, Any] = json.loads(body)
        return document

    def discard(self, name: str) -> None:
        """Remove a document, which also a full disk can; nothing if it is absent."""
        (self.path / name).unlink(missing_ok=True)

    def room_bytes(self) -> int:
        """How many more bytes there is room for."""
        facts = os.statvfs(self.path)
        return facts.f_bavail * facts.f_frsize

    def sync(self) -> None:
        """Let names of files be on the disk."""
        sync(self.path)

    def remove(self, base_offset: int) -> None:
        """Remove a segment and its documents."""
        for file in self.path.glob(f"{segment_name(base_offset)}.*"):
            file.unlink(missing_ok=True)


class MemoryPlace:
    """Files without names, which the kernel keeps in memory until the process ends."""

    def __init__(self, name: str) -> None:
        self.name = f"memory of {name}"
        self._files: dict[int, int] = {}
        self._documents: dict[str, dict[str, Any]] = {}

    def bases(self) -> list[int]:
        """Offsets at which segments begin, ascending."""
        return sorted(self._files)

    def open(self, base_offset: int, *, is_new: bool = False) -> int:
        """Open a segment, which is made if it is new; the caller closes what it gets."""
        if is_new and base_offset not in self._files:
            self._files[base_offset] = os.memfd_create(segment_name(base_offset))
        return os.dup(self._files[base_offset])

    def reserve(self, descriptor: int, start: int, size: int) -> None:
        """Take no memory before there is something to keep."""

    def save(self, name: str, document: dict[str, Any], *, is_synced: bool = False) -> None:
        """Keep a document."""
        self._documents[name] = document

    def load(self, name: str) -> dict[str, Any] | None:
        """Return a document; None: there is none."""
        return self._documents.get(name)

    def discard(self, name: str) -> None:
        """Forget a document."""
        self._documents.pop(name, None)

    def room_bytes(self) -> int:
        """Whatever the machine has: nobody counts it before it is needed."""
        return _MEMORY_ROOM_BYTES

    def sync(self) -> None:
        """Keep what ends with the process."""

    def remove(self, base_offset: int) -> None:
        """Give the memory of a segment back."""
        descriptor = self._files.pop(base_offset, None)
        if descriptor is not None:
            os.close(descriptor)
        for ending in ("index", "start"):
            self._documents.pop(f"{segment_name(base_offset)}.{ending}", None)
