"""Which writer a part has, and that of Parquet; those of texts are in ``text_parts``.

A writer is made for one part and used by one thread at a time. It encodes without the GIL.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from weir.operators.sinks.text_parts import CsvPart, JsonLinesPart, PartWriter
from weir.rows.records import batch_bytes
from weir.specs import CsvSinkSpec, FileSinkSpec, JsonLinesSinkSpec, ParquetSinkSpec

#: Rows that are looked at to see whether values of a text column repeat, and how often they must on average.
_SAMPLE_ROWS = 16 << 10
_REPEATS_MIN = 8
_ENDINGS = {"gzip": ".gz", "zstd": ".zst"}
#: The end of a part's name, without the dot, and what makes the writer of a part in a stream.
PartFormat = tuple[str, Callable[[Any, pa.Schema], PartWriter]]


def part_format(spec: FileSinkSpec) -> PartFormat:
    """The format that a sink's settings ask for."""
    match spec:
        case ParquetSinkSpec():
            return "parquet", lambda stream, schema: ParquetPart(stream, schema, spec)
        case JsonLinesSinkSpec():
            ending = _ENDINGS.get(spec.compression or "", "")
            return f"jsonl{ending}", lambda stream, schema: JsonLinesPart(stream, schema, spec.compression)
        case CsvSinkSpec():
            ending = _ENDINGS.get(spec.compression or "", "")
            return f"csv{ending}", lambda stream, schema: CsvPart(
                stream, schema, spec.compression, spec.separator
            )
        case _:
            raise AssertionError(f"{type(spec).__name__} has no format")


class ParquetPart(PartWriter):
    """Parquet: a row group is encoded by another thread while the next one is collected."""

    def __init__(self, stream: Any, schema: pa.Schema, spec: ParquetSinkSpec) -> None:
        self._stream, self._schema, self._spec = stream, schema, spec
        self._writer: Any = None
        self._pool: ThreadPoolExecutor | None = None
        self._encoding: Future[None] | None = None
        self._rows: list[pa.RecordBatch] = []
        self._row_count = 0
        self._bytes = 0

    def write(self, rows: pa.RecordBatch) -> None:
        """Collect rows, and have a row group written when enough are there."""
        self._rows.append(rows)
        self._row_count += rows.num_rows
        self._bytes += batch_bytes(rows)
        if self._row_count >= self._spec.row_group_rows or self._bytes >= self._spec.row_group_bytes:
            self.spill()

    @property
    def held_bytes(self) -> int:
        """Return the bytes of the row group that is being collected."""
        return self._bytes

    def spill(self) -> None:
        """Have a row group written of what is there, when the one before it is."""
        if self._rows:
            self._wait()
            self._pool = self._pool or ThreadPoolExecutor(1, thread_name_prefix="parquet-sink")
            self._encoding = self._pool.submit(self._write_row_group, self._taken())

    def flush(self) -> None:
        """Nothing: a row group is written as a whole."""

    def end(self) -> None:
        """Write the last row group and the footer."""
        self._wait()
        if self._rows or self._writer is None:
            self._write_row_group(self._taken())
        self._writer.close()
        self._release()

    def abandon(self) -> None:
        """Release the writer; else it complains, when it is collected, that its stream is closed."""
        with contextlib.suppress(Exception):
            self._wait()
        with contextlib.suppress(OSError, ValueError, pa.ArrowException):
            if self._writer is not None:
                self._writer.close()
        self._rows = []
        self._release()

    def _taken(self) -> pa.Table:
        table = pa.Table.from_batches(self._rows, self._schema)
        self._rows, self._row_count, self._bytes = [], 0, 0
        return table

    def _write_row_group(self, table: pa.Table) -> None:
        if self._writer is None:
            spec = self._spec
            self._writer = pq.ParquetWriter(
                self._stream,
                self._schema,
                compression=spec.compression,
                compression_level=spec.compression_level,
                use_dictionary=repeating_columns(table),
                column_encoding=dict.fromkeys(_whole_numbers(self._schema), "DELTA_BINARY_PACKED"),
            )
        if table.num_rows:
            self._writer.write_table(table, row_group_size=table.num_rows)

    def _wait(self) -> None:
        encoding, self._encoding = self._encoding, None
        if encoding is not None:
            encoding.result()

    def _release(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False)
        self._pool = None


def _whole_numbers(schema: pa.Schema) -> list[str]:
    """Columns that Parquet keeps as integers; packed, they take a quarter less time than plain values with ZSTD."""
    kinds = (pa.types.is_integer, pa.types.is_date, pa.types.is_timestamp)
    return [field.name for field in schema if any(is_kind(field.type) for is_kind in kinds)]


def repeating_columns(table: pa.Table) -> list[str]:
    """Text columns whose values repeat: a dictionary makes them smaller.

    For others it is built, found too large and thrown away, in three quarters of the time that encoding takes.
    """
    sample = table.slice(0, _SAMPLE_ROWS)
    return [
        field.name
        for field in table.schema
        if (pa.types.is_string(field.type) or pa.types.is_binary(field.type))
        and pc.count_distinct(sample[field.name]).as_py() * _REPEATS_MIN <= sample.num_rows
    ]
