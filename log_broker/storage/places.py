"""Where segments lie: a directory, or memory that ends with the process."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from log_broker.errors import LogDamagedError, LogWriteError
from log_broker.storage.removal import REMOVER
from weir.process.disk import sync
from weir.protocol.log.entries import checksum
from weir.security.private_files import private_directory

_NAME_DIGITS = 20
#: Of ``fallocate``: reserve blocks behind the end, and leave the end where it is; Python has only what moves it.
_KEEP_SIZE = 1
_MEMORY_ROOM_BYTES = 1 << 40
#: Folder of what was kept before a replica began anew; what it kept before it did so again is in ``aside.2``.
ASIDE = "aside"
#: Ending of such a folder while data is on its way there: it gets its name once all of it is.
_UNFINISHED = ".unfinished"
#: Endings while salvage is under way: of what is put back, and of what was there instead.
_BACK, _NOW = ".back", ".now"
#: So many sets of data are kept: the first one, which has counted, and the latest; each of these was being filled.
_ASIDES = (ASIDE, *(f"{ASIDE}.{number}" for number in range(2, 5)))


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

    @property
    def bytes_max(self) -> int:
        """More than so many bytes of segments are refused; 0: as many as there is room for."""

    def check(self) -> None:
        """Look whether what is here is one replica's data.

        Raises:
            LogWriteError: salvage has put back a part of what was set aside, and was ended then.
        """

    def bases(self) -> list[int]:
        """Offsets at which segments begin, ascending."""

    def starts(self) -> list[int]:
        """Offsets at which a segment begins or began, by the documents of their starts."""

    def open(self, base_offset: int, *, is_new: bool = False) -> int:
        """Open the file of a segment, which is made if it is new; returns a descriptor, which the caller closes."""

    def reserve(self, descriptor: int, start: int, size: int) -> None:
        """Set room aside for bytes of a segment, whose length does not change; nothing where that is not possible."""

    def save(self, name: str, document: dict[str, Any], *, is_synced: bool = False) -> None:
        """Replace a small document as a whole; synced, with the names of all files there, if it is to be."""

    def load(self, name: str) -> dict[str, Any] | None:
        """Read a document; None: there is none."""

    def discard(self, name: str) -> None:
        """Remove a document, which also a full disk can; nothing if it is absent."""

    def room_bytes(self) -> int:
        """How many more bytes there is room for."""

    def remove(self, base_offset: int) -> None:
        """Remove a segment and its documents."""

    def set_aside(self, first: str) -> None:
        """Move everything away, this document first, where it stays until :meth:`drop_aside`.

        Apart from what was set aside before, which a replica that begins anew a second time has not made good yet.

        Raises:
            OSError: some of it is where it was.
        """

    def drop_aside(self) -> None:
        """Let go of all that was set aside; nothing if nothing was. Its room comes back a little later.

        Raises:
            OSError: some of it is still there.
        """


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
        self._aside_unfinished = path / f"{ASIDE}{_UNFINISHED}"
        try:
            is_new = not path.is_dir()
            private_directory(path)
            if is_new:
                # Else all that is synced in it could be gone after the machine went down.
                sync(path.parent)
            if self._aside_unfinished.is_dir() and not self.bases():
                # An earlier process has moved everything, and ended before it was named.
                self._name_aside()
        except OSError as error:
            raise LogWriteError(f"{path}: {error.strerror}; choose another --dir") from error
        REMOVER.go_on(path)

    @property
    def name(self) -> str:
        """The directory."""
        return str(self.path)

    @property
    def bytes_max(self) -> int:
        """Return 0: the disk has a bound of its own."""
        return 0

    def bases(self) -> list[int]:
        """Offsets at which segments begin, ascending."""
        return self._numbers("log")

    def starts(self) -> list[int]:
        """Offsets at which a segment begins or began, by the documents of their starts."""
        return self._numbers("start")

    def _numbers(self, ending: str) -> list[int]:
        return sorted(int(file.stem) for file in self.path.glob(f"*.{ending}") if file.stem.isdecimal())

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
                sync(self.path)
        except OSError as error:
            with contextlib.suppress(OSError):
                fresh.unlink(missing_ok=True)
            raise LogWriteError(f"{path}: {error.strerror}; make room or mend the directory") from error

    def load(self, name: str) -> dict[str, Any] | None:
        """Read a document; None: there is none.

        Raises:
            LogDamagedError: it is not what was written.
            LogWriteError: it cannot be read, which says nothing of what it holds.
        """
        try:
            content = (self.path / name).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise LogWriteError(f"{self.path / name}: {error.strerror}; mend the directory") from error
        crc, _, body = content.partition(b"\n")
        if crc != b"%08x" % checksum(body):
            raise LogDamagedError(f"{self.path / name} has another checksum than was written")
        document: dict[str, Any] = json.loads(body)
        return document

    def discard(self, name: str) -> None:
        """Remove a document, which also a full disk can; nothing if it is absent."""
        (self.path / name).unlink(missing_ok=True)

    def room_bytes(self) -> int:
        """How many more bytes there is room for; none where the disk does not say."""
        try:
            facts = os.statvfs(self.path)
        except OSError:
            return 0
        return facts.f_bavail * facts.f_frsize

    def remove(self, base_offset: int) -> None:
        """Remove a segment and its documents, which mean nothing without it."""
        files = self.path.glob(f"{segment_name(base_offset)}.*")
        for file in sorted(files, key=lambda file: file.suffix != ".log"):
            file.unlink(missing_ok=True)

    def asides(self) -> list[Path]:
        """Return the folders of what was set aside, the earliest first: each is what one replica had here."""
        return [folder for name in _ASIDES if (folder := self.path / name).is_dir()]

    def set_aside(self, first: str) -> None:
        """Move everything into a folder of its own; see :class:`Place`."""
        unfinished = self._aside_unfinished
        try:
            private_directory(unfinished)
        except OSError:
            # A full disk. A restart must not take the data for whole meanwhile.
            self.discard(first)
            raise
        # What an earlier process has moved is the rest of the same data.
        self._move_files(self.path, unfinished, first)
        self._name_aside()

    def end_set_aside(self, first: str) -> None:
        """Move what is left, if a process has died while it moved everything away; raises as :meth:`set_aside`."""
        if self._aside_unfinished.is_dir():
            self.set_aside(first)

    @staticmethod
    def _move_files(source: Path, target: Path, first: str) -> None:
        """Move all files, this one first and segments last.

        As long as a segment is there, whoever goes on after a crash knows that something is.
        """
        for file in sorted(source.iterdir(), key=lambda file: (file.name != first, file.suffix == ".log")):
            if file.is_file():
                os.replace(file, target / file.name)

    def _name_aside(self) -> None:
        """Put what was moved behind what was set aside before; two replicas' data in one folder would be nobody's."""
        unfinished, kept = self._aside_unfinished, self.asides()
        if not any(file.suffix == ".log" for file in unfinished.iterdir()):
            REMOVER.remove(unfinished)
            return
        if len(kept) == len(_ASIDES):
            REMOVER.remove(kept.pop(1))
        # Also those that a process had no time to rename any more.
        for each, name in zip(kept, _ASIDES, strict=False):
            if each.name != name:
                os.replace(each, self.path / name)
        os.replace(unfinished, self.path / _ASIDES[len(kept)])

    def check(self) -> None:
        """Refuse to be read while a part of it is elsewhere; see :class:`Place`."""
        if self.begun_swap() is not None:
            raise LogWriteError(
                f"{self.path}: what was set aside is put back in part; call weir log broker --salvage once more"
            )

    def begun_swap(self) -> Path | None:
        """Return the folder whose :meth:`swap_aside` has not ended; None: there is none."""
        begun = [each for ending in (_BACK, _NOW) for each in self.path.glob(f"{ASIDE}*{ending}")]
        return begun[0].with_suffix("") if begun else None

    def swap_aside(self, folder: Path, document: str) -> None:
        """Put back what is in one of :meth:`asides`, without this document of it; what is here now goes there.

        Raises:
            OSError: the disk has done a part of it; call again, with :meth:`begun_swap` if that names a folder.
        """
        back, now = (folder.with_name(folder.name + ending) for ending in (_BACK, _NOW))
        if not back.is_dir():
            private_directory(now)
            self._move_files(self.path, now, document)
            os.replace(folder, back)
        # From here on what lies here is what is put back, and no call moves it away.
        if now.is_dir():
            os.replace(now, folder)
        (back / document).unlink(missing_ok=True)
        self._move_files(back, self.path, document)
        back.rmdir()

    def drop_aside(self) -> None:
        """Remove these folders; see :class:`Place`."""
        for folder in self.path.glob(f"{ASIDE}*"):
            REMOVER.remove(folder)


class MemoryPlace:
    """Files without names, which the kernel keeps in memory until the process ends."""

    def __init__(self, name: str, bytes_max: int = 0) -> None:
        """``bytes_max``: more than so many bytes of segments are refused; 0: no bound."""
        self.name = f"memory of {name}"
        self.bytes_max = bytes_max
        self._files: dict[int, int] = {}
        self._documents: dict[str, dict[str, Any]] = {}

    def bases(self) -> list[int]:
        """Offsets at which segments begin, ascending."""
        return sorted(self._files)

    def starts(self) -> list[int]:
        """Offsets at which a segment begins or began, by the documents of their starts."""
        return [int(name.partition(".")[0]) for name in self._documents if name.endswith(".start")]

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

    def remove(self, base_offset: int) -> None:
        """Give the memory of a segment back."""
        descriptor = self._files.pop(base_offset, None)
        if descriptor is not None:
            os.close(descriptor)
        for ending in ("index", "start"):
            self._documents.pop(f"{segment_name(base_offset)}.{ending}", None)

    def check(self) -> None:
        """Nothing can be put back."""

    def set_aside(self, first: str) -> None:
        """Give all of it back: a process that ends could not keep it either."""
        for base in self.bases():
            self.remove(base)
        self._documents.clear()

    def drop_aside(self) -> None:
        """Nothing is kept."""
