"""How rows become the bytes of a part: JSON lines, CSV, Parquet.

A writer is made for one part and used by one thread at a time. It encodes without the GIL.
"""

from __future__ import annotations

import contextlib
import io
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from weir.operators.sinks.json_lines_sink import frame_lines, naming_years, with_whole_minutes
from weir.rows.frames import frame_of
from weir.rows.records import batch_bytes
from weir.specs import CsvSinkSpec, FileSinkSpec, JsonLinesSinkSpec, ParquetSinkSpec

#: Rows that are looked at to see whether values of a text column repeat, and how often they must on average.
_SAMPLE_ROWS = 16 << 10
_REPEATS_MIN = 8
_ENDINGS = {"gzip": ".gz", "zstd": ".zst"}


class PartWriter(ABC):
    """Writes one part into a stream that somebody else opened and will close."""

    @property
    def held_bytes(self) -> int:
        """Return the bytes of rows that are held back."""
        return 0

    def spill(self) -> None:
        """Hold back nothing any more."""
        self.flush()

    @abstractmethod
    def write(self, rows: pa.RecordBatch) -> None:
        """Add rows; some may be held back until :meth:`end`."""

    @abstractmethod
    def flush(self) -> None:
        """Bring out what need not be held back."""

    @abstractmethod
    def end(self) -> None:
        """Write what was held back, and the end of the part."""

    @abstractmethod
    def abandon(self) -> None:
        """Nobody wants the part; must not raise."""


#: The end of a part's name, without the dot, and what makes the writer of a part in a stream.
PartFormat = tuple[str, Callable[[Any, pa.Schema], PartWriter]]


def part_format(spec: FileSinkSpec) -> PartFormat:
    """The format that a sink's settings ask for."""
    match spec:
        case ParquetSinkSpec():
            return "parquet", lambda stream, schema: ParquetPart(stream, schema, spec)
        case JsonLinesSinkSpec():
            ending = _ENDINGS.get(spec.compression or "", "")
            return f"jsonl{ending}", lambda stream, _: JsonLinesPart(stream, spec.compression)
        case CsvSinkSpec():
            ending = _ENDINGS.get(spec.compression or "", "")
            return f"csv{ending}", lambda stream, _: CsvPart(stream, spec.compression, spec.separator)
        case _:
            raise AssertionError(f"{type(spec).__name__} has no format")


class _Kept(io.RawIOBase):
    """A stream that does not close when the compressor that writes to it does."""

    def __init__(self, stream: Any) -> None:
        self._kept = stream

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._kept.write(data)
        return len(data)


class _TextPart(PartWriter):
    """Text, compressed or not."""

    def __init__(self, stream: Any, compression: str | None) -> None:
        self._outer = stream
        self._stream = (
            stream if compression is None else pa.CompressedOutputStream(_Kept(stream), compression)
        )

    @abstractmethod
    def _encode(self, frame: pl.DataFrame) -> bytes: ...

    def write(self, rows: pa.RecordBatch) -> None:
        """Write the lines."""
        self._stream.write(self._encode(frame_of(rows)))

    def flush(self) -> None:
        """Hand lines to the operating system."""
        if self._stream is self._outer:
            self._stream.flush()

    def end(self) -> None:
        """Write the end of the compressed stream."""
        if self._stream is not self._outer:
            self._stream.close()

    def abandon(self) -> None:
        """Release the compressor."""
        if self._stream is not self._outer:
            with contextlib.suppress(OSError, ValueError):
                self._stream.close()


class JsonLinesPart(_TextPart):
    """A part of JSON lines, with one object a line."""

    def _encode(self, frame: pl.DataFrame) -> bytes:
        return frame_lines(frame)


class CsvPart(_TextPart):
    """RFC 4180, with the names of the columns in the first line; a null is empty, an empty string ``""``."""

    def __init__(self, stream: Any, compression: str | None, separator: str) -> None:
        super().__init__(stream, compression)
        self._separator = separator
        self._is_begun = False

    def _encode(self, frame: pl.DataFrame) -> bytes:
        out = io.BytesIO()
        with naming_years():
            frame = with_whole_minutes(frame)
            frame.write_csv(out, separator=self._separator, include_header=not self._is_begun)
        self._is_begun = True
        return out.getvalue()


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
