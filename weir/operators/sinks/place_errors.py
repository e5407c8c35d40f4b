"""Why a place cannot be written: error numbers of the system, texts of ``pyarrow.fs``, as one line with the mend."""

from __future__ import annotations

import os
from pathlib import Path

from weir.errors import FailureKind, InputError
from weir.redaction import redacted_text

_ABSENT = ("NO_SUCH_BUCKET", "NoSuchBucket", "bucket does not exist")
_DENIED = ("ACCESS_DENIED", "INVALID_ACCESS_KEY", "SIGNATURE_DOES_NOT_MATCH", "HTTP status 403")
_TEXT_MAX = 200


def unwritable(error: OSError, location: str) -> InputError:
    """What to raise (``from error``) when a sink cannot write.

    Args:
        error: of the system, or of pyarrow, which has no number where a service answered.
        location: the directory or URI, without credentials.
    """
    if "://" in location and not error.errno:
        return _of_service(error, location)
    if isinstance(error, FileExistsError | NotADirectoryError):
        for path in (Path(location), *Path(location).parents):
            if path.exists() and not path.is_dir():
                return InputError(f"sink: {path} is a file; name a directory")
    # Arrow puts more into it than what the operating system says.
    cause = os.strerror(error.errno) if error.errno else str(error)
    return InputError(
        f"sink: cannot write to {location}: {cause}; make room there, or choose a writable directory"
    )


def _of_service(error: OSError, location: str) -> InputError:
    text = redacted_text(" ".join(str(error).split()))
    if any(mark in text for mark in _ABSENT):
        return InputError(f"sink: cannot write to {location}: the bucket does not exist; create it")
    if any(mark in text for mark in _DENIED):
        return InputError(
            f"sink: cannot write to {location}: access is denied; change permissions or credentials"
        )
    explained = InputError(
        f"sink: cannot write to {location}: {text[:_TEXT_MAX]}; check endpoint, network and credentials"
    )
    explained.failure_kind = FailureKind.OUTAGE
    return explained
