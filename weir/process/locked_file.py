"""A file that says that one process of this machine has something for itself, as long as it lives."""

from __future__ import annotations

import contextlib
import fcntl
from pathlib import Path
from typing import IO


def locked_file(path: Path) -> IO[bytes]:
    """Return a file that this process has locked, made if it is absent; closing it, or ending, gives the lock up.

    Raises:
        BlockingIOError: another process has the lock.
        OSError: the file cannot be used, or its file system knows no locks.
    """
    with contextlib.ExitStack() as opened:
        file = opened.enter_context(path.open("ab"))
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            # With the name, which the call does not know.
            raise OSError(error.errno, error.strerror, str(path)) from error
        opened.pop_all()
    return file
