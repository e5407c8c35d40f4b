"""Who owns a store directory: a marker says that it is ours, a lock says that it is in use.

Nothing below a directory is ever deleted unless its marker is there and valid and the lock is held::

    <directory>/weir-store.json   {"format": "weir-rocksdb-store", "version": 1}
    <directory>/weir-store.lock   flock of the process that has the store open; holds its process id
    <directory>/rocksdb/          RocksDB's own files
    <directory>/snapshots/        images of the store that are being published
    <directory>/images/           images from which state is being restored
    <directory>/published/        files that are in a checkpoint store elsewhere, so as not to fetch them again
    <directory>/standby/          files of the state of other task managers, to take over from them
    <directory>/staged/           left by earlier versions; worthless
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
from pathlib import Path

from weir.errors import FailureKind, StateError
from weir.security.private_files import private_directory

MARKER_NAME = "weir-store.json"
LOCK_NAME = "weir-store.lock"
DATA_NAME = "rocksdb"
SNAPSHOTS_NAME = "snapshots"
IMAGES_NAME = "images"
PUBLISHED_NAME = "published"
STANDBY_NAME = "standby"
STAGED_NAME = "staged"
FORMAT_NAME = "weir-rocksdb-store"
#: Covers the key layout (``weir.state.layout``) and the split of the directory.
FORMAT_VERSION = 1

_OWN_NAMES = {LOCK_NAME, MARKER_NAME + ".new"}


class StoreDirectory:
    """A claimed directory; :meth:`release` gives it up. ``data_path`` is where RocksDB may write."""

    def __init__(self, path: Path, lock_descriptor: int | None) -> None:
        self.path = path
        self.data_path = path / DATA_NAME
        self._lock_descriptor = lock_descriptor

    def release(self) -> None:
        """Let other processes open the store; safe to call twice."""
        if self._lock_descriptor is not None:
            os.close(self._lock_descriptor)
            self._lock_descriptor = None


def claim_directory(path: Path, *, fresh: bool) -> StoreDirectory:
    """Create or take over a store directory and lock it; with ``fresh``, remove what an earlier run left.

    Raises:
        StateError: the path is a file, holds files that are not ours, is in use, or cannot be written.
    """
    try:
        return _claim(path, fresh=fresh)
    except OSError as error:
        raise StateError(describe_os_error(path, error)) from error


def describe_os_error(path: Path, error: OSError) -> str:
    """Return a line on why a state directory cannot be used, with the mend."""
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"state directory {path} is not writable; choose another one or change its permissions"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"no space is left for state directory {path}; free some or choose another disk"
    if error.errno in (errno.ENOTDIR, errno.EEXIST):
        return f"state directory {path} is, or lies below, a file; choose another path"
    return f"state directory {path} cannot be used: {error.strerror or error}"


def _claim(path: Path, *, fresh: bool) -> StoreDirectory:
    private_directory(path)
    _refuse_foreign_files(path)
    directory = StoreDirectory(path, _lock(path))
    try:
        # Again under the lock: only now nobody else is creating this store.
        _refuse_foreign_files(path)
        if not (path / MARKER_NAME).exists():
            _write_marker(path)
        else:
            # What only the process before this one needed.
            _remove(path / SNAPSHOTS_NAME)
            _remove(path / IMAGES_NAME)
            _remove(path / STAGED_NAME)
            if fresh:
                _remove(directory.data_path)
        directory.data_path.mkdir(exist_ok=True)
    except BaseException:
        directory.release()
        raise
    return directory


def _remove(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)


def _refuse_foreign_files(path: Path) -> None:
    names = set(os.listdir(path))
    if MARKER_NAME in names:
        _check_marker(path)
    elif names - _OWN_NAMES:
        raise _refusal(
            f"state directory {path} holds files but no {MARKER_NAME}, so it is not ours and stays as it is; "
            "choose an empty or new directory"
        )


def _check_marker(path: Path) -> None:
    try:
        marker = json.loads((path / MARKER_NAME).read_bytes())
        name, version = marker["format"], marker["version"]
    except (ValueError, TypeError, KeyError) as error:
        raise _refusal(
            f"{path / MARKER_NAME} is damaged, so the directory stays as it is; choose another one"
        ) from error
    if name != FORMAT_NAME:
        raise _refusal(
            f"{path / MARKER_NAME} says format {name!r}, not {FORMAT_NAME!r}; choose another directory"
        )
    if version != FORMAT_VERSION:
        raise _refusal(
            f"the store in {path} has format version {version!r}, this program reads {FORMAT_VERSION}; "
            "choose another directory or use the program that wrote it"
        )


def _refusal(message: str) -> StateError:
    """The directory is somebody else's, and stays it."""
    error = StateError(message)
    error.failure_kind = FailureKind.PERMANENT
    return error


def _write_marker(path: Path) -> None:
    marker = json.dumps({"format": FORMAT_NAME, "version": FORMAT_VERSION}) + "\n"
    draft = path / (MARKER_NAME + ".new")
    draft.write_text(marker)
    draft.replace(path / MARKER_NAME)


def _lock(path: Path) -> int:
    descriptor = os.open(path / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
        os.close(descriptor)
        raise StateError(
            f"state directory {path} is in use by process {holder or '(unknown)'}; "
            "stop it or choose another directory"
        ) from error
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor
