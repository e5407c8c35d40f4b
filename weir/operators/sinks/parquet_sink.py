"""The Parquet sink: exactly once, a file per transaction; ``weir.operators.sinks.part_files`` has the files' names."""

from __future__ import annotations

import contextlib
from typing import BinaryIO, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from weir.operators.sinks.part_files import PartFilesSink
from weir.records import batch_bytes, user_columns
from weir.specs import ParquetSinkSpec

#: A row group is written when this much of it is there, or at the end of the part.
ROW_GROUP_ROWS = 128 << 10
ROW_GROUP_BYTES = 32 << 20


class ParquetSink(PartFilesSink):
    """Writes user columns as Parquet; a part is complete, with its footer, before it becomes visible."""

    suffix: ClassVar[str] = "parquet"

    def __init__(self, spec: ParquetSinkSpec) -> None:
        super().__init__(spec.path)
        self._writer: pq.ParquetWriter | None = None
        #: Rows of the row group that is being collected.
        self._rows: list[pa.RecordBatch] = []
        self._row_count = 0
        self._bytes = 0

    def begin_part(self, file: BinaryIO) -> None:
        """The writer is made with the first rows, whose columns it takes."""
        self._forget()

    def write_rows(self, file: BinaryIO, batch: pa.RecordBatch) -> None:
        """Collect rows, and write a row group when enough are there."""
        rows = batch.select(user_columns(batch.schema))
        if self._writer is None:
            self._writer = pq.ParquetWriter(file, rows.schema)
        self._rows.append(rows)
        self._row_count += rows.num_rows
        self._bytes += batch_bytes(rows)
        if self._row_count >= ROW_GROUP_ROWS or self._bytes >= ROW_GROUP_BYTES:
            self._write_row_group()

    def end_part(self, file: BinaryIO) -> None:
        """Write the last row group and the footer."""
        assert self._writer is not None
        self._write_row_group()
        self._writer.close()
        self._writer = None

    def close(self) -> None:
        """Release the file; see the base class. What was collected is lost, and comes again."""
        self._forget()
        super().close()

    def _write_row_group(self) -> None:
        assert self._writer is not None
        if self._rows:
            self._writer.write_table(pa.Table.from_batches(self._rows), row_group_size=self._row_count)
        self._rows, self._row_count, self._bytes = [], 0, 0

    def _forget(self) -> None:
        if self._writer is not None:
            # Else it does so when it is collected, and complains that its file is closed.
            with contextlib.suppress(OSError, ValueError, pa.ArrowException):
                self._writer.close()
        self._writer = None
        self._rows, self._row_count, self._bytes = [], 0, 0
