"""The Parquet source: row groups are its splits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from weir.errors import InputError
from weir.operators.base import OperatorContext
from weir.operators.pacing import BatchSource
from weir.operators.splits import assign, list_input_files, share_events
from weir.specs import ParquetSpec


@dataclass(frozen=True, slots=True)
class RowGroup:
    """One row group of one file; ``first_row`` is its first row's number in the file."""

    path: str
    index: int
    first_row: int
    rows: int


class ParquetReader(BatchSource):
    """Reads one subtask's row groups.

    Columns are found by name and must have the schema's types; other columns are not read. A row with a null in
    a field that is not nullable (or in the event-time column) goes to the dead letters; its position is the
    row's number in the file.
    """

    def __init__(self, spec: ParquetSpec) -> None:
        super().__init__(spec)
        self._spec = spec
        #: Rows rejected so far.
        self.rejected = 0
        time_column = spec.event_time_column
        self._required = [f.name for f in spec.schema if not f.nullable or f.name == time_column]
        self._file: pq.ParquetFile | None = None
        self._file_path = ""
        self._pending: list[RowGroup] = []
        self._batches: list[pa.RecordBatch] = []
        self._row_group: RowGroup | None = None
        self._row_offset = 0

    def close(self) -> None:
        """Release the file."""
        self._batches = []
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open_input(self, context: OperatorContext) -> None:
        groups: list[RowGroup] = []
        for path in list_input_files(self._spec.path):
            groups += self._row_groups(path)
        self._assigned = assign([group.rows for group in groups], groups, context.parallelism)
        self._pending = self._assigned[context.subtask_index][::-1]

    def _row_groups(self, path: str) -> list[RowGroup]:
        try:
            with pq.ParquetFile(path) as file:
                self._check_schema(path, file.schema_arrow)
                counts = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
        except (OSError, pa.ArrowException) as error:
            raise _unreadable(path, error) from error
        firsts = np.cumsum([0, *counts]).tolist()
        return [RowGroup(path, i, firsts[i], rows) for i, rows in enumerate(counts) if rows]

    def _check_schema(self, path: str, found: pa.Schema) -> None:
        for field in self._spec.schema:
            if field.name not in found.names:
                raise InputError(
                    f"{path}: there is no column {field.name} ({field.type}), only {', '.join(found.names)}; "
                    f"correct the source's schema or the file"
                )
            actual = found.field(field.name).type
            if not _same_type(actual, field.type):
                raise InputError(
                    f"{path}: column {field.name} has type {actual}, the source's schema says {field.type}; "
                    f"correct the schema or the file"
                )

    def _has_input(self) -> list[bool]:
        return [bool(assigned) for assigned in self._assigned]

    def _event_quota(self, events_max: int) -> int:
        available = [sum(group.rows for group in groups) for groups in self._assigned]
        return share_events(events_max, available)[self._context.subtask_index]

    def _next_batch(self) -> pa.RecordBatch | None:
        while True:
            while not self._batches:
                if not self._pending:
                    return None
                self._row_group = self._pending.pop()
                self._row_offset = 0
                self._batches = self._read(self._row_group)
            batch = self._batches.pop()
            first_row = self._row_offset
            self._row_offset += batch.num_rows
            good = self._good_rows(batch, first_row)
            if good.num_rows:
                return good

    def _read(self, group: RowGroup) -> list[pa.RecordBatch]:
        """The group's rows, cut to decoded batches, last one first."""
        try:
            if self._file is None or self._file_path != group.path:
                self.close()
                self._file = pq.ParquetFile(group.path)
                self._file_path = group.path
            names = self._spec.schema.names
            table = self._file.read_row_group(group.index, columns=names, use_threads=False).select(names)
            table = table.cast(pa.schema([f.with_nullable(True) for f in self._spec.schema]))
        except (OSError, pa.ArrowException) as error:
            raise _unreadable(group.path, error) from error
        return list(table.to_batches(max_chunksize=self.rows_decoded_max))[::-1]

    def _good_rows(self, batch: pa.RecordBatch, first_row: int) -> pa.RecordBatch:
        """Put rows with forbidden nulls aside."""
        good = np.ones(batch.num_rows, dtype=np.bool_)
        for name in self._required:
            column = batch.column(name)
            if column.null_count:
                missing = column.is_null().to_numpy(zero_copy_only=False)
                for row in np.flatnonzero(missing & good).tolist():
                    self._reject(first_row + row, f"field {name} is null", batch.slice(row, 1))
                good &= ~missing
        if not good.all():
            batch = batch.filter(pa.array(good))
        return pa.RecordBatch.from_arrays(batch.columns, schema=self._spec.schema)

    def _reject(self, row: int, reason: str, batch: pa.RecordBatch) -> None:
        assert self._row_group is not None
        path = self._row_group.path
        position = self._row_group.first_row + row
        self.rejected += 1
        if self._spec.on_bad_record == "fail":
            raise InputError(
                f"{path} row {position}: {reason}; correct the file, or let the source "
                f'{self._context.operator_name} put bad records aside with on_bad_record="dead_letter"'
            )
        if self._context.dead_letters is not None:
            raw = orjson.dumps(batch.to_pylist()[0], default=str)
            self._context.dead_letters.reject(path, position, reason, raw)


def _same_type(actual: pa.DataType, wanted: pa.DataType) -> bool:
    strings = (pa.string(), pa.large_string(), pa.string_view())
    return actual == wanted or (actual in strings and wanted in strings)


def _unreadable(path: str, error: Exception) -> InputError:
    reason = " ".join(str(error).split())
    return InputError(f"cannot read input {path}: {reason}; check that it is a Parquet file")
