"""A directory that one process has for itself, as long as it lives."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from weir.errors import AddressInUseError, ConfigError
from weir.process.locked_file import locked_file
from weir.security.private_files import private_directory


@contextlib.contextmanager
def owned_directory(directory: Path, owner: str) -> Iterator[None]:
    """Keep a second process away from a directory that ``--dir`` has named; it is made if it is absent.

    Args:
        directory: of its data.
        owner: what such processes are called, in one word for the lock's name and for messages.

    Raises:
        AddressInUseError: another one has it.
        ConfigError: it cannot be used.
    """
    try:
        private_directory(directory)
        lock = locked_file(directory / f".{owner}.lock")
    except BlockingIOError as error:
        raise AddressInUseError(
            f"--dir {directory} is in use by another {owner}; stop that one, or name a directory of its own"
        ) from error
    except OSError as error:
        raise ConfigError(f"--dir {directory}: {error.strerror}; name another directory") from error
    with lock:
        yield
