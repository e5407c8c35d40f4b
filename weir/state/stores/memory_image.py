"""The file of an image of the memory backend: all entries as two binary columns, Arrow IPC.

A persisted format: a change needs a new file name, and the old one must stay readable.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from pyarrow import ipc

from weir.errors import StateError

MEMORY_IMAGE_NAME = "entries-1.arrow"

_SCHEMA = pa.schema([("key", pa.large_binary()), ("value", pa.large_binary())])
_BATCH_ENTRIES = 100_000


def write_entries(directory: Path, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
    """Write an image into a directory, which is created. Raises OSError."""
    directory.mkdir()
    with pa.OSFile(str(directory / MEMORY_IMAGE_NAME), "wb") as out, ipc.new_file(out, _SCHEMA) as writer:
        for start in range(0, len(keys), _BATCH_ENTRIES):
            columns = [
                pa.array(column[start : start + _BATCH_ENTRIES], pa.large_binary())
                for column in (keys, values)
            ]
            writer.write_batch(pa.record_batch(columns, schema=_SCHEMA))


def read_entries(directory: Path) -> Iterator[list[tuple[bytes, bytes]]]:
    """The entries of an image, by the batch.

    Raises:
        StateError: the file is damaged or absent.
    """
    path = directory / MEMORY_IMAGE_NAME
    try:
        with pa.OSFile(str(path)) as file, ipc.open_file(file) as reader:
            if reader.schema != _SCHEMA:
                raise StateError(f"{path} is not an image of a memory store; start from another checkpoint")
            for index in range(reader.num_record_batches):
                keys, values = reader.get_batch(index).columns
                yield list(zip(keys.to_pylist(), values.to_pylist(), strict=True))
    except (OSError, pa.ArrowException) as error:
        raise StateError(
            f"{path} cannot be read: {' '.join(str(error).split())}; start from another checkpoint"
        ) from error
