"""The one place that reads the text of rocksdict's exceptions, which are all bare ``Exception``."""

from __future__ import annotations

from pathlib import Path

from rocksdict import DbClosedError

from weir.errors import FailureKind, StateError

_FULL = ("No space left", "Disk quota exceeded")
_CAUSES = (
    (
        _FULL,
        "no space is left for {path}; free some or choose another disk",
    ),
    (("File too large",), "a file in {path} reached the process's file size limit; raise it (ulimit -f)"),
    (("Permission denied", "Read-only file system"), "{path} is not writable; change its permissions"),
    (
        ("lock hold by current process", "LOCK: "),
        "{path} is open elsewhere; close it or choose another directory",
    ),
    (
        ("Corruption", "checksum mismatch"),
        "the store in {path} is damaged; restore it or remove the directory",
    ),
    (("Too many open files",), "too many open files for {path}; lower max_open_files or raise ulimit -n"),
)


def state_error(error: Exception, path: Path) -> StateError:
    """What to raise (``from error``) for an exception of rocksdict about the store in ``path``."""
    if isinstance(error, DbClosedError):
        return StateError(f"the store in {path} is closed")
    text = " ".join(str(error).split())
    for marks, message in _CAUSES:
        if any(mark in text for mark in marks):
            found = StateError(f"{message.format(path=path)} ({text})")
            if marks is _FULL:
                found.failure_kind = FailureKind.OUTAGE
            return found
    return StateError(f"the store in {path} failed: {text}")


def is_stall(error: Exception) -> bool:
    """Return whether RocksDB has refused a write because it would have to wait."""
    return "Write stall" in str(error)


def stalled_error(path: Path, waited_s: float) -> StateError:
    """What to raise when it has refused for so long."""
    error = StateError(
        f"the store in {path} has taken no write for {waited_s:.0f} s; is its disk full, or slow?"
    )
    error.failure_kind = FailureKind.OUTAGE
    return error
