"""Sinks without time stamps: blackhole, print and JSON lines."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

import polars as pl
import pyarrow as pa

from weir.errors import InputError
from weir.operators.base import Operator, OperatorContext
from weir.records import user_columns
from weir.specs import BlackholeSpec, JsonLinesSinkSpec, PrintSpec

_BUFFER_BYTES = 1 << 20


class BlackholeSink(Operator):
    """Counts rows and drops them."""

    def __init__(self, spec: BlackholeSpec) -> None:
        #: Rows so far.
        self.rows = 0

    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """Count."""
        self.rows += batch.num_rows
        return ()


class PrintSink(Operator):
    """Prints user columns as JSON lines on standard output."""

    def __init__(self, spec: PrintSpec) -> None:
        self._left = spec.rows_max

    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """Print until the limit is reached (of this subtask), then drop."""
        if self._left is not None:
            batch = batch.slice(0, self._left)
            self._left -= batch.num_rows
        if batch.num_rows:
            sys.stdout.write(json_lines(batch).decode())
            sys.stdout.flush()
        return ()


class JsonLinesSink(Operator):
    """Writes user columns to ``path/part-<subtask>.jsonl``.

    Rows go to a hidden file that takes its name when the input ends: whoever sees a part sees all of it. Not
    transactional: after a failure the hidden file holds what was flushed, and the next run begins it anew.
    """

    def __init__(self, spec: JsonLinesSinkSpec) -> None:
        self._directory = Path(spec.path).expanduser()
        self._file: BinaryIO | None = None

    def open(self, context: OperatorContext) -> None:
        """Create the directory and the hidden file.

        Raises:
            InputError: an earlier run's part is there, or the directory cannot be written.
        """
        self._part = self._directory / f"part-{context.subtask_index}.jsonl"
        self._hidden = self._directory / f".part-{context.subtask_index}.jsonl.unfinished"
        if self._part.exists():
            raise InputError(f"sink: {self._part} exists already; remove it or choose another directory")
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            self._file = open(self._hidden, "wb", buffering=_BUFFER_BYTES)  # noqa: SIM115
        except OSError as error:
            raise InputError(
                f"sink: cannot write {self._hidden}: {error.strerror}; choose a writable directory"
            ) from error

    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """Append the rows."""
        assert self._file is not None
        self._file.write(json_lines(batch))
        return ()

    def flush(self) -> None:
        """Hand buffered rows to the operating system."""
        if self._file is not None:
            self._file.flush()

    def finish(self) -> Iterable[pa.RecordBatch]:
        """Give the part its name."""
        assert self._file is not None
        self._file.flush()
        os.fsync(self._file.fileno())
        self.close()
        os.replace(self._hidden, self._part)
        return ()

    def close(self) -> None:
        """Release the file; safe to call twice."""
        if self._file is not None:
            self._file.close()
            self._file = None


def json_lines(batch: pa.RecordBatch) -> bytes:
    """The user columns of a batch, one JSON object a line."""
    frame = pl.from_arrow(batch.select(user_columns(batch.schema)))
    assert isinstance(frame, pl.DataFrame)
    out = io.BytesIO()
    frame.write_ndjson(out)
    return out.getvalue()
