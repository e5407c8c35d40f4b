"""Hidden files with the rows that are in no visible file yet: Arrow IPC streams, compressed with LZ4.

They are written once and closed: what a checkpoint names can be read by any later process, and a process that was
replaced cannot add to it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyarrow import ipc

from weir.author.operator import Json
from weir.errors import InputError
from weir.operators.sinks.places import Place
from weir.rows.records import batch_bytes

#: Subtask, generation and number of a row log.
LOG_NAME = re.compile(r"\.rows-(\d+)-(\d+)-(\d+)\.pending")
#: Rows that are collected before they are written.
COLLECTED_BYTES = 8 << 20


def log_prefix(subtask_index: int, generation: int) -> str:
    """What the names of all files of a subtask's deployment have."""
    return f"{subtask_index:05d}-{generation:06d}"


def log_name(prefix: str, number: int) -> str:
    """The name of a row log."""
    return f".rows-{prefix}-{number:08d}.pending"


@dataclass(frozen=True, slots=True)
class RowLog:
    """A closed one."""

    name: str
    #: Of its rows, as Arrow has them in memory.
    bytes: int
    #: Epoch µs at which its first row came.
    began_us: int

    def to_json(self) -> Json:
        """Return the log for a snapshot."""
        return [self.name, self.bytes, self.began_us]

    @staticmethod
    def from_json(value: Json) -> RowLog:
        """Return the log of a snapshot."""
        return RowLog(*value)


class RowLogWriter:
    """A log that is being written; the file is created with the first rows."""

    def __init__(self, place: Place, name: str, began_us: int) -> None:
        self._place, self._name, self._began_us = place, name, began_us
        self._stream: Any = None
        self._writer: Any = None
        self._rows: list[pa.RecordBatch] = []
        self._collected_bytes = 0
        #: Of all rows so far.
        self.bytes = 0

    def write(self, rows: pa.RecordBatch) -> None:
        """Add rows."""
        size_bytes = batch_bytes(rows)
        self._rows.append(rows)
        self.bytes += size_bytes
        self._collected_bytes += size_bytes
        if self._collected_bytes >= COLLECTED_BYTES:
            self._write_collected()

    def seal(self) -> RowLog:
        """Bring everything to the disk."""
        self._write_collected()
        self._writer.close()
        self._place.seal([self._stream])
        self._writer = self._stream = None
        return RowLog(self._name, self.bytes, self._began_us)

    def abandon(self) -> None:
        """Release the file; may raise OSError."""
        stream, self._stream, self._writer, self._rows = self._stream, None, None, []
        if stream is not None:
            stream.close()

    def _write_collected(self) -> None:
        if not self._rows:
            return
        schema = self._rows[0].schema
        if self._writer is None:
            self._stream = self._place.create(self._name)
            options = ipc.IpcWriteOptions(compression="lz4")
            self._writer = ipc.new_stream(self._stream, schema, options=options)
        (rows,) = pa.Table.from_batches(self._rows, schema).combine_chunks().to_batches()
        self._writer.write_batch(rows)
        self._rows, self._collected_bytes = [], 0


def read_logs(place: Place, logs: list[RowLog]) -> Iterator[pa.RecordBatch]:
    """The rows of logs, in their order.

    Raises:
        InputError: one is gone.
    """
    for log in logs:
        try:
            stream = place.open(log.name)
        except FileNotFoundError as error:
            raise InputError(
                f"sink: {place.at(log.name)} is gone, with rows that were not in a file yet; start the job from its "
                "latest checkpoint, in the directory where it ran"
            ) from error
        with stream, ipc.open_stream(stream) as reader:
            yield from reader
