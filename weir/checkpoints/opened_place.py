"""The choice of the place of checkpoints by its URI."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from weir.checkpoints.files import FilePlace
from weir.checkpoints.local_files import LocalFiles


def open_place(uri: str, *below: str) -> FilePlace:
    """The place of a local directory or of any URI that ``pyarrow.fs`` understands, and of a folder below it.

    A local directory is created; nothing else is asked of the place yet.

    Raises:
        CheckpointError: the URI is not understood.
    """
    scheme = urlsplit(uri).scheme
    if scheme in ("", "file"):
        path = urlsplit(uri).path if scheme else uri
        return LocalFiles(Path(path).absolute().joinpath(*below))
    # It loads pyarrow, which a process without such a place does without.
    from weir.checkpoints.arrow_files import open_arrow_files

    return open_arrow_files(uri, below)
