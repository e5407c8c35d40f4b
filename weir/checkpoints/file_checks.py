"""Whether fetched files of checkpoints have the content that was published: few bytes at once, many beside the job.

A job that goes on from gigabytes does not wait until they are read. No checkpoint that it makes counts before they are.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future
from pathlib import Path

from weir import threads
from weir.checkpoints.digests import digest_of
from weir.checkpoints.layout import path_in_savepoint
from weir.errors import CheckpointError, FailureKind
from weir.protocol.checkpoints.manifest import FileRef
from weir.security.private_files import private_directory

log = logging.getLogger(__name__)

#: So many bytes are read before a restored job goes on: 8 ms where they are in memory (xxh3 reads 8 GB/s).
_AT_ONCE_BYTES = 64 << 20
_FOLDER = "checks"


class FileChecks:
    """Checks that fetched files have the content that was published. Methods may be called from any thread.

    Args:
        location: of the checkpoint store, for messages.
        directory: where links are kept of files that are read later; ours, and on the file system of the files.
        at_once_bytes: so many are read by who fetches the files.
    """

    def __init__(self, location: str, directory: Path, at_once_bytes: int = _AT_ONCE_BYTES) -> None:
        self._location = location
        self._folder = directory / _FOLDER
        self._at_once = at_once_bytes
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._reader: Executor | None = None
        self._under_way: list[Future[None]] = []
        self._damage: CheckpointError | None = None
        self._closed = False

    def check(self, items: Iterable[tuple[FileRef, Path]]) -> None:
        """Check files, or begin to; those of older versions of Weir have no digest.

        Raises:
            CheckpointError: one is damaged. The job cannot go on from this checkpoint.
        """
        for file, path in items:
            if not file.digest:
                continue
            link = None if self._is_small(file.size_bytes) else self._link(path)
            if link is None:
                check_file(self._location, file, path)
            else:
                self._submit(file, link)

    def check_copies(
        self,
        items: Iterable[tuple[FileRef, Path]],
        drop: Callable[[FileRef], None],
        *,
        at_once: bool = False,
    ) -> list[tuple[FileRef, Path]]:
        """Check files that this machine has kept, as :meth:`check`; returns those that are damaged, to be fetched.

        ``drop`` is called with these, and with those whose damage is found later: the job then fails once, and its next
        deployment fetches them. ``at_once``: none is read later, because the caller may change them.
        """
        damaged_ones = []
        for file, path in items:
            is_now = at_once or not file.digest or self._is_small(file.size_bytes)
            link = None if is_now else self._link(path)
            if link is not None:
                self._submit(file, link, drop)
                continue
            try:
                check_file(self._location, file, path)
            except CheckpointError:
                log.warning("the copy of %s on this disk is damaged, so the file is fetched", file.path)
                drop(file)
                damaged_ones.append((file, path))
        return damaged_ones

    def _is_small(self, size_bytes: int) -> bool:
        with self._lock:
            self._at_once -= size_bytes
            return self._at_once >= 0

    def _link(self, path: Path) -> Path | None:
        """The store may delete a table before it has been read here."""
        link = self._folder / f"{os.getpid()}-{id(self)}-{next(self._numbers)}"
        try:
            private_directory(self._folder)
            os.link(path, link)
        except OSError:
            return None
        return link

    def _submit(self, file: FileRef, link: Path, drop: Callable[[FileRef], None] | None = None) -> None:
        with self._lock:
            if self._closed:
                link.unlink(missing_ok=True)
                return
            if self._reader is None:
                self._reader = threads.pool(1, "file-checks")
            self._under_way.append(self._reader.submit(self._read, file, link, drop))

    def _read(self, file: FileRef, link: Path, drop: Callable[[FileRef], None] | None) -> None:
        try:
            if not self._closed and self._damage is None:
                check_file(self._location, file, link, self)
        except CheckpointError as error:
            found = error
            if drop is not None:
                drop(file)
                found = _damaged_copy(self._location, file)
            log.error("%s", found)
            with self._lock:
                self._damage = self._damage or found
        finally:
            link.unlink(missing_ok=True)

    @property
    def is_closed(self) -> bool:
        """Return whether nobody waits for it any more."""
        return self._closed

    def raise_damage(self) -> None:
        """What is known by now.

        Raises:
            CheckpointError: a file is damaged.
        """
        if self._damage is not None:
            raise self._damage

    def settle(self) -> None:
        """Wait until all files have been read: a checkpoint that counts is made of whole ones only.

        Raises:
            CheckpointError: a file is damaged.
        """
        with self._lock:
            under_way = list(self._under_way)
        for reading in under_way:
            if not reading.cancelled():
                reading.result()
        with self._lock:
            self._under_way = [reading for reading in self._under_way if not reading.done()]
        self.raise_damage()

    def close(self) -> None:
        """Give up what has not been read."""
        with self._lock:
            self._closed = True
            reader, self._reader = self._reader, None
        if reader is not None:
            reader.shutdown(wait=True)


def check_file(location: str, file: FileRef, path: Path, checks: FileChecks | None = None) -> None:
    """Compare a file's content with its digest; files of older versions of Weir have none.

    Raises:
        CheckpointError: it has another content, or cannot be read.
    """
    if not file.digest:
        return
    try:
        found = digest_of(path, bool if checks is None else lambda: checks.is_closed)
    except OSError as error:
        raise damaged(location, file.path, f"it cannot be read ({error.strerror})") from error
    if found and found != file.digest:
        raise damaged(location, file.path, "its content is not what was written")


def _damaged_copy(location: str, file: FileRef) -> CheckpointError:
    error = CheckpointError(
        f"checkpoint store {location}, file {file.path}: the copy of it on this disk is damaged; it is removed, and "
        "the file is fetched when the job starts again"
    )
    error.failure_kind = FailureKind.OUTAGE
    return error


def damaged(location: str, path: str, why: str) -> CheckpointError:
    """What to raise for a file of a checkpoint that is not whole: the next attempt would find the same."""
    origin = path_in_savepoint(path)
    came = f" (file {origin} of the savepoint that the job began with)" if origin else ""
    error = CheckpointError(
        f"checkpoint store {location}, file {path}{came}: {why}, so it is damaged; restore the file, or name another "
        "checkpoint to start from: --from-checkpoint FOLDER/manifests/NUMBER.json"
    )
    error.failure_kind = FailureKind.PERMANENT
    return error
