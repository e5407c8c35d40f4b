"""The one place that reads why a checkpoint store failed: error numbers of the system, texts of ``pyarrow.fs``."""

from __future__ import annotations

import errno

from weir.errors import CheckpointError, FailureKind

_FULL = "no space is left; free some or choose another checkpoint_uri (no checkpoint was lost)"
_DENIED = "access is denied; change its permissions or credentials, or choose another checkpoint_uri"
_UNREACHABLE = "it cannot be reached; check endpoint and network, or choose another checkpoint_uri"
_BELOW_A_FILE = "a part of the path is a file; choose another checkpoint_uri"
_MENDS = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EFBIG: "the file reached the process's size limit; raise it (ulimit -f)",
    errno.EACCES: _DENIED,
    errno.EPERM: _DENIED,
    errno.EROFS: _DENIED,
    errno.ENOTDIR: _BELOW_A_FILE,
    errno.EEXIST: _BELOW_A_FILE,
    errno.EISDIR: "the path is a directory; choose another checkpoint_uri",
    errno.EMFILE: "too many files are open; raise ulimit -n",
}
#: Marks in the text of errors without a number, as S3 gives them.
_TEXT_MENDS = (
    (("NO_SUCH_BUCKET",), "the bucket does not exist; create it or choose another checkpoint_uri"),
    (("ACCESS_DENIED", "INVALID_ACCESS_KEY", "SIGNATURE_DOES_NOT_MATCH", "HTTP status 403"), _DENIED),
    (("NETWORK_CONNECTION", "curlCode", "Couldn't connect", "timed out", "timeout"), _UNREACHABLE),
    (("HTTP status 507", "QuotaExceeded", "No space left"), _FULL),
)


def checkpoint_error(error: Exception, location: str, path: str = "") -> CheckpointError:
    """What to raise (``from error``) for an error about a file in the checkpoint store at ``location``.

    Args:
        error: an OSError, or a ValueError of pyarrow.
        location: the store, without credentials.
        path: the file below it; "" for the store itself.
    """
    about = f"checkpoint store {location}" + (f", file {path}" if path else "")
    if isinstance(error, FileNotFoundError):
        return CheckpointError(
            f"{about}: the file does not exist; restore it or start from another checkpoint"
        )
    number = error.errno if isinstance(error, OSError) else None
    if number in _MENDS:
        return _explained(about, _MENDS[number])
    text = " ".join(str(error).split())
    for marks, mend in _TEXT_MENDS:
        if any(mark in text for mark in marks):
            return _explained(about, mend)
    return CheckpointError(f"{about}: {text[:300] or type(error).__name__}")


def _explained(about: str, mend: str) -> CheckpointError:
    error = CheckpointError(f"{about}: {mend}")
    if mend in (_FULL, _UNREACHABLE):
        error.failure_kind = FailureKind.OUTAGE
    return error
