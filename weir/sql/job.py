"""The job of a text: ``weir run hot.sql`` is ``weir run weir.sql.job --param file=hot.sql``."""

from __future__ import annotations

import re
from pathlib import Path

from weir.dataflow.builder import Dataflow
from weir.errors import GraphError
from weir.sql.program import build_program

#: A text is read whole.
_BYTES_MAX = 4 << 20


def build(file: str, parallelism: int = 1) -> Dataflow:
    """The dataflow of a file of SQL statements.

    Args:
        file: its path; the job is called after it.
        parallelism: of sources that do not say theirs, and so of what follows them.

    Raises:
        GraphError: the file cannot be read, or something in it is wrong: one line with file, line and column.
    """
    path, text = Path(file), text_of(file)
    name = re.sub(r"[^A-Za-z0-9_-]", "_", path.stem) or "sql"
    return build_program(path.name, text, name, parallelism)


def text_of(file: str) -> str:
    """The text of a file.

    Raises:
        GraphError: it cannot be read.
    """
    path = Path(file)
    try:
        if path.stat().st_size > _BYTES_MAX:
            raise GraphError(f"{file} has more than {_BYTES_MAX >> 20} MiB; is it SQL?")
        return path.read_text("utf-8")
    except OSError as error:
        raise GraphError(f"{file} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise GraphError(f"{file} is not UTF-8, at byte {error.start}") from error
