"""Checkpoint files in a local (or mounted) directory: hard links where possible, synced before they count."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from weir.checkpoints.files import DRAFT_PREFIX, FilePlace, Listed
from weir.process.disk import sync

#: The file system has no hard links, or not between these directories.
_NO_LINK = {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}

_COPY_BYTES = 4 << 20


class LocalFiles(FilePlace):
    """Checkpoint files in a directory of the machine; ``root`` need not exist yet."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.location = str(root)

    def links_to(self, directory: Path) -> bool:
        """Return whether both are on one device."""
        return _device(self.root) == _device(directory)

    def create(self, path: str, data: bytes) -> bool:
        """Write a small file durably unless it is there; of several writers exactly one wins."""
        target = self.root / path
        _make_folder(target.parent)
        with _draft(target) as draft:
            draft.write_bytes(data)
            sync(draft)
            try:
                os.link(draft, target)
            except FileExistsError:
                return False
            except OSError as error:
                if error.errno not in _NO_LINK:
                    raise
                return _create_in_place(target, data)
        sync(target.parent)
        return True

    def read(self, path: str) -> bytes:
        """The content of a small file."""
        return (self.root / path).read_bytes()

    def read_ranges(self, ranges: Sequence[tuple[str, int, int]]) -> list[bytes]:
        """Parts of files, one after the other."""
        return [self._read_range(*each) for each in ranges]

    def _read_range(self, path: str, offset: int, size_bytes: int) -> bytes:
        with (self.root / path).open("rb") as stream:
            return os.pread(stream.fileno(), size_bytes, offset)

    def write(self, path: str, chunks: Iterable[bytes]) -> None:
        """Write a file durably."""
        target = self.root / path
        _make_folder(target.parent)
        with _draft(target) as draft:
            with draft.open("wb") as stream:
                stream.writelines(chunks)
            sync(draft)
            draft.replace(target)
        sync(target.parent)

    def put(self, items: Sequence[tuple[Path, str]]) -> None:
        """Link or copy files here; folders are synced once for all."""
        folders = set()
        for source, path in items:
            target = self.root / path
            if target.parent not in folders:
                _make_folder(target.parent)
                folders.add(target.parent)
            self.check_wanted()
            _bring(source, target, check=self.check_wanted)
        for folder in folders:
            sync(folder)

    def get(self, items: Sequence[tuple[str, Path]], *, own: bool = False) -> None:
        """Link or copy files from here; the targets need not survive a power cut."""
        for path, target in items:
            if own:
                shutil.copyfile(self.root / path, target)
            else:
                _bring(self.root / path, target, durable=False)

    def copy_to(self, paths: Sequence[tuple[str, str]], other: FilePlace) -> None:
        """Link or copy files to another place."""
        other.put([(self.root / path, there) for path, there in paths])

    def sizes(self, paths: Sequence[str]) -> list[int | None]:
        """Sizes in bytes; None: the file does not exist."""
        found: list[int | None] = []
        for path in paths:
            try:
                found.append((self.root / path).stat().st_size)
            except FileNotFoundError:
                found.append(None)
        return found

    def folders(self, folder: str) -> list[str]:
        """Names of the folders in a folder; none if it does not exist."""
        try:
            with os.scandir(self.root / folder) as entries:
                return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        except FileNotFoundError:
            return []

    def files(self, folder: str) -> list[Listed]:
        """Return all files below a folder."""
        found = []
        for directory, _, names in os.walk(self.root / folder):
            for name in names:
                path = os.path.join(directory, name)
                with contextlib.suppress(FileNotFoundError):
                    found.append(Listed(os.path.relpath(path, self.root), os.stat(path).st_size))
        return found

    def delete(self, paths: Iterable[str]) -> None:
        """Delete files, and the folders that are empty then."""
        for path in paths:
            target = self.root / path
            target.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                target.parent.rmdir()

    def delete_folder(self, folder: str) -> None:
        """Delete a folder and everything in it."""
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self.root / folder)


def link_or_copy(source: Path, target: Path, check: Callable[[], None] = lambda: None) -> None:
    """Make ``target`` a link to a file, or a copy of it where that is not possible.

    ``check`` is called before each piece that is copied, and may raise.

    Raises:
        FileExistsError: there is a target.
        OSError: anything else.
    """
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise
        with _draft(target) as draft:
            with source.open("rb") as stream, draft.open("wb") as out:
                while piece := stream.read(_COPY_BYTES):
                    check()
                    out.write(piece)
            sync(draft)
            draft.rename(target)


def _device(path: Path) -> int:
    """The device of a path, or of where it would be created."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return path.stat().st_dev


def _bring(
    source: Path, target: Path, *, durable: bool = True, check: Callable[[], None] = lambda: None
) -> None:
    try:
        link_or_copy(source, target, check)
    except FileExistsError:
        if target.stat().st_size != source.stat().st_size:
            # Left by a crash of the whole machine; a draft takes its place in one step.
            with _draft(target) as draft:
                link_or_copy(source, draft, check)
                draft.replace(target)
    if durable:
        sync(target)


@contextlib.contextmanager
def _draft(target: Path) -> Iterator[Path]:
    """A name beside ``target`` for a file that is not complete; nothing has it afterwards."""
    draft = target.with_name(f"{DRAFT_PREFIX}{target.name}-{secrets.token_hex(6)}")
    try:
        yield draft
    finally:
        # Renamed already, or on a disk that fails: an expiry removes what stays.
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)


def _create_in_place(target: Path, data: bytes) -> bool:
    """Create a file on a file system without hard links; after a crash a reader may find it damaged."""
    try:
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    except FileExistsError:
        return False
    try:
        with open(descriptor, "wb", closefd=False) as stream:
            stream.write(data)
        os.fsync(descriptor)
    except BaseException:
        target.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)
    sync(target.parent)
    return True


def _make_folder(folder: Path) -> None:
    """Create a folder and those above it, durably."""
    if folder.is_dir():
        return
    if folder.parent != folder:
        _make_folder(folder.parent)
    # Checkpoints hold rows and keys of users.
    folder.mkdir(mode=0o700, exist_ok=True)
    sync(folder.parent)
