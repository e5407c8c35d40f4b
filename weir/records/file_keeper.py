"""A record in a local file, and what any such place promises. ``weir.records.etcd_keeper`` is the other place."""

from __future__ import annotations

import contextlib
import os
from functools import partial
from pathlib import Path
from typing import IO, Protocol

from weir.errors import AddressInUseError, CheckpointError
from weir.process.disk import sync
from weir.process.locked_file import locked_file
from weir.security.private_files import private_directory


class Keeper(Protocol):
    """Holds one document for the process that leads: a control plane, or the controller of a log.

    Methods block; none is called twice at once. Beside the document there may be others, which can be lost.
    """

    @property
    def place(self) -> str:
        """Where the document is, for messages."""

    @property
    def is_shared(self) -> bool:
        """Return whether another process can come to lead while this process runs."""

    def lead(self) -> None:
        """Become the leader; waits while another process leads, if this place can tell when that ends.

        Raises:
            AddressInUseError: another one leads, and this place cannot wait.
            CheckpointError: the place cannot be used.
        """

    def load(self) -> bytes | None:
        """What was saved last; None: nothing.

        Raises:
            CheckpointError: it cannot be read.
        """

    def save(self, data: bytes) -> None:
        """Replace the document, durably.

        Raises:
            CheckpointError: it cannot be written.
            SupersededError: another process leads.
        """

    def load_beside(self, name: str) -> bytes | None:
        """Return what :meth:`save_beside` saved last under a name, which is a word; None: nothing."""

    def save_beside(self, name: str, data: bytes) -> None:
        """Replace another document, which may be lost when the machine goes down; raises like :meth:`save`.

        Comes also while :meth:`save` runs.
        """

    def close(self) -> None:
        """Give up the leadership; safe to call twice."""


class FileKeeper:
    """A file that is replaced as a whole; a lock beside it keeps a second process of this machine away."""

    def __init__(
        self, path: Path, *, owner: str = "control plane", setting: str = "controlPlane.state_path"
    ) -> None:
        """Touch nothing yet.

        Args:
            path: of the file.
            owner: what the processes are whose record it is, for messages.
            setting: what names the file, for messages.
        """
        self.path = path
        self._owner = owner
        self._setting = setting
        self._lock: IO[bytes] | None = None

    @property
    def place(self) -> str:
        """The file; see :class:`Keeper`."""
        return str(self.path)

    @property
    def is_shared(self) -> bool:
        """The lock is held as long as the process lives; see :class:`Keeper`."""
        return False

    def lead(self) -> None:
        """Take the lock; see :class:`Keeper`."""
        try:
            private_directory(self.path.parent)
            self._lock = locked_file(self.path.with_name(f".{self.path.name}.lock"))
        except BlockingIOError as error:
            raise AddressInUseError(
                f"{self.path} is in use by another {self._owner}; stop that one, or give this one a file of its own "
                f"({self._setting})"
            ) from error
        except OSError as error:
            raise self._error("use", error) from error

    def load(self) -> bytes | None:
        """Read the file; see :class:`Keeper`."""
        return self._load(self.path)

    def load_beside(self, name: str) -> bytes | None:
        """Read a file beside it; see :class:`Keeper`."""
        return self._load(self._beside(name))

    def _load(self, path: Path) -> bytes | None:
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._error("read", error, path) from error

    def save(self, data: bytes) -> None:
        """Write another file, sync it and rename it; see :class:`Keeper`."""
        self._save(self.path, data, is_durable=True)

    def save_beside(self, name: str, data: bytes) -> None:
        """Write another file and rename it; see :class:`Keeper`."""
        self._save(self._beside(name), data, is_durable=False)

    def _beside(self, name: str) -> Path:
        return self.path.with_name(f"{self.path.name}.{name}")

    def _save(self, path: Path, data: bytes, *, is_durable: bool) -> None:
        fresh = path.with_name(f".{path.name}.unfinished")
        try:
            # It has the job's parameters.
            with open(fresh, "wb", opener=partial(os.open, mode=0o600)) as file:
                file.write(data)
                file.flush()
                if is_durable:
                    os.fsync(file.fileno())
            os.replace(fresh, path)
            if is_durable:
                # Else the one before may be there after the machine went down.
                sync(path.parent)
        except OSError as error:
            with contextlib.suppress(OSError):
                fresh.unlink()
            raise self._error("write", error, path) from error

    def close(self) -> None:
        """Release the lock; see :class:`Keeper`."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _error(self, verb: str, error: OSError, path: Path | None = None) -> CheckpointError:
        return CheckpointError(
            f"cannot {verb} {path or self.path}: {error.strerror}; name another file ({self._setting})"
        )
