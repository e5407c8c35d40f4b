"""Rows in a file that is mapped into memory: the system may take the memory, and reads what is looked at."""

from __future__ import annotations

import os
import tempfile

import pyarrow as pa

_FILE_PREFIX = "weir-rows-"


def mapped(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows in a file without a name, in the folder for temporary files (``TMPDIR``); it goes with them.

    Raises:
        OSError: the file cannot be written.
    """
    handle, path = tempfile.mkstemp(prefix=_FILE_PREFIX)
    try:
        with os.fdopen(handle, "wb") as file, pa.ipc.new_file(file, batch.schema) as writer:
            writer.write_batch(batch)
        return pa.ipc.open_file(pa.memory_map(path)).get_batch(0)
    finally:
        os.unlink(path)
