"""Rows of a Parquet row group straight from its pages: each text is copied once, to where its batch is.

A value of 200 bytes costs pyarrow's decoder three times what copying it takes. This is for flat columns of numbers and
texts in local files; pyarrow reads everything else.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pa_types

from weir.operators.sources.parquet.parquet_columns import Column
from weir.operators.sources.parquet.parquet_int96 import INT96, INT96_VALUE
from weir.operators.sources.parquet.parquet_late import LateRows, LateTexts
from weir.operators.sources.parquet.parquet_pages import CODECS, PageReader, UnsupportedPageError

_ENCODINGS = {"PLAIN", "RLE", "RLE_DICTIONARY", "PLAIN_DICTIONARY", "BIT_PACKED"}
#: Types that are read, by how the file calls what it keeps: as which type, since values lie in the file so. No batch
#: needs 64-bit offsets.
_TYPES: dict[str, dict[pa.DataType, pa.DataType]] = {
    "INT64": {pa.int64(): pa.int64()},
    "INT32": {
        pa.int32(): pa.int32(),
        pa.int16(): pa.int32(),
        pa.int8(): pa.int32(),
        pa.date32(): pa.date32(),
    },
    "DOUBLE": {pa.float64(): pa.float64()},
    "FLOAT": {pa.float32(): pa.float32()},
    "BYTE_ARRAY": {
        pa.string(): pa.string(),
        pa.large_string(): pa.string(),
        pa.binary(): pa.binary(),
        pa.large_binary(): pa.binary(),
    },
}
#: Of what lies in the file as in memory; None: texts.
_DTYPES: dict[str, np.dtype | None] = {
    "INT64": np.dtype("<i8"),
    "INT32": np.dtype("<i4"),
    "DOUBLE": np.dtype("<f8"),
    "FLOAT": np.dtype("<f4"),
    "BYTE_ARRAY": None,
    INT96: INT96_VALUE,
}
_UNITS = {"ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}
#: The last bytes of a file: bytes of its metadata, and what it is.
_END = struct.Struct("<I4s")
#: See :func:`file_state`.
FileState: TypeAlias = tuple[int, int, int, int]
#: A column comes late if its rows have so many bytes in the mean, and there are others.
_LATE_ROW_BYTES, _LATE_COLUMNS_MIN = 64, 2
#: So many batches of late rows come as one, since a batch costs the same on cold caches whatever is in it: with two the
#: CPU of a row was a sixth less than with one, with four another twentieth. Who divides them makes batches again
#: (``weir.keys.division.PartLimits``).
LATE_BATCHES = 4


class DirectGroup:
    """The wanted columns of one row group of a local file."""

    def __init__(self, descriptor: int, file: pq.ParquetFile, index: int, names: Sequence[str]) -> None:
        """Reads nothing yet; ``descriptor`` belongs to the caller.

        Raises:
            UnsupportedPageError: a column is to be read by pyarrow.
        """
        group = file.metadata.row_group(index)
        schema = file.schema_arrow
        places = {group.column(place).path_in_schema: place for place in range(group.num_columns)}
        self._file, self._index = file, index
        self._columns = []
        for name in names:
            field = schema.field(name)
            place = places.get(name, -1)
            if place < 0 or "." in name:
                raise UnsupportedPageError(f"column {name} is nested")
            chunk, declared = group.column(place), file.schema.column(place)
            found = _kept_as(field.type, declared)
            if found is None or declared.max_repetition_level or declared.max_definition_level > 1:
                raise UnsupportedPageError(f"column {name} has type {field.type}")
            if chunk.file_path or chunk.compression not in CODECS or not set(chunk.encodings) <= _ENCODINGS:
                raise UnsupportedPageError(f"column {name} has another compression or encoding")
            may_be_null = declared.max_definition_level == 1
            data_type, dtype = found
            unit = field.type.unit if dtype == INT96_VALUE else None
            pages = PageReader(descriptor, chunk, dtype, may_be_null=may_be_null, int96_unit=unit)
            given = pa.field(name, data_type)
            size_bytes = chunk.total_uncompressed_size
            self._columns.append(Column(given, pages, size_bytes, is_text=dtype is None))
        self._schema = pa.schema([column.field for column in self._columns])
        self.rows = group.num_rows

    def _late_column(self, but: Collection[str]) -> Column | None:
        """Return the column with the most bytes, if its texts are long, and the others are enough for a batch."""
        if len(self._columns) < _LATE_COLUMNS_MIN:
            return None
        longest = max(self._columns, key=lambda column: column.size_bytes * column.is_text)
        is_long = longest.is_text and longest.size_bytes >= _LATE_ROW_BYTES * self.rows
        return longest if is_long and longest.field.name not in but else None

    def batches(
        self, first_row: int, rows_max: int, bytes_max: int, late_but: Collection[str] | None = None
    ) -> Iterator[pa.RecordBatch | LateRows]:
        """The rows from one on; batches have about ``bytes_max`` at most, unless it is one row.

        ``late_but``: long texts of another column than these may come late; None: no column. Rows that lack one may be
        ``LATE_BATCHES`` times as many.

        Raises:
            UnsupportedPageError, DamagedPageError: pyarrow is to go on, from the first row that was not given.
            OSError: the file cannot be read.
        """
        fixed_bytes = sum(column.row_bytes for column in self._columns)
        is_mixed = any(column.is_text for column in self._columns)
        rows_max = max(1, min(rows_max, bytes_max // fixed_bytes // (2 if is_mixed else 1)))
        # Long texts decide how many rows a batch has.
        by_size = sorted(self._columns, key=lambda column: (column.is_text, column.size_bytes), reverse=True)
        texts_max = max(1, bytes_max - rows_max * fixed_bytes)
        limits = _shares([column.size_bytes * column.is_text for column in by_size], texts_max)
        for column in self._columns:
            column.skip(first_row)
        row = first_row
        late = None if late_but is None else self._late_column(late_but)
        limit_of = dict(zip(by_size, limits, strict=True))
        # Of late texts it is known how many bytes they have, so that they need no room to spare.
        late_bytes_max = 0 if late is None else max(limit_of[late], self._share_of(late, texts_max))
        limit_beside = {column: LATE_BATCHES * limit for column, limit in limit_of.items()}
        while row < self.rows:
            rows = min(rows_max, self.rows - row)
            if late is not None:
                wanted = min(LATE_BATCHES * rows_max, self.rows - row)
                texts = self._plan(late, row, wanted, LATE_BATCHES * late_bytes_max)
                rows = min(rows, late.rows_to_boundary() if texts is None else texts.rows)
                found = None if texts is None else self._beside(late, texts, limit_beside)
                if found is not None:
                    row += found.late.rows
                    yield found
                    continue
            arrays: dict[str, pa.Array] = {}
            for column, limit in limit_of.items():
                array = arrays[column.field.name] = column.take(rows, limit)
                rows = min(rows, len(array))
            taken = [column.keep(arrays[column.field.name], rows) for column in self._columns]
            row += rows
            yield pa.RecordBatch.from_arrays(taken, schema=self._schema)

    def _share_of(self, late: Column, total: int) -> int:
        """Return how many of a batch's bytes of texts are one column's, by what they have in the file."""
        sizes = (column.size_bytes for column in self._columns if column.is_text)
        return total * late.size_bytes // max(1, sum(sizes))

    def _plan(self, late: Column, row: int, rows_max: int, bytes_max: int) -> LateTexts | None:
        """The next texts of a column, to be read later; None: they are to be taken."""
        plan = late.plan(rows_max, bytes_max)
        if not plan.rows:
            return None
        return LateTexts(
            field=late.field,
            place=self._columns.index(late),
            rows=plan.rows,
            size_bytes=plan.size_bytes,
            pages=plan.pages,
            read_otherwise=partial(self._read_otherwise, late.field, row, plan.rows),
            passed=plan.passed,
        )

    def _beside(self, late: Column, texts: LateTexts, limit_of: Mapping[Column, int]) -> LateRows | None:
        """The rows of late texts; None: they have too many bytes, and are to be taken."""
        others = [column for column in self._columns if column is not late]
        taken = [column.take(texts.rows, limit_of[column]) for column in others]
        if min(map(len, taken)) < texts.rows:
            for column, array in zip([*others, late], [*taken, texts.array()], strict=True):
                column.give_back(array)
            return None
        arrays = [column.keep(array, texts.rows) for column, array in zip(others, taken, strict=True)]
        schema = pa.schema([column.field for column in others])
        return LateRows(pa.RecordBatch.from_arrays(arrays, schema=schema), texts)

    def _read_otherwise(self, field: pa.Field, first: int, rows: int) -> pa.Array:
        column = self._file.read_row_group(self._index, columns=[field.name]).column(0)
        return column.slice(first, rows).combine_chunks().cast(field.type)


def _kept_as(data_type: pa.DataType, declared: pq.ColumnSchema) -> tuple[pa.DataType, np.dtype | None] | None:
    """Return as which type a column is read, and its values' type in the file, None of texts; None: by pyarrow."""
    kept = declared.physical_type
    if pa_types.is_timestamp(data_type):
        is_plain = kept == "INT64" and f"timeUnit={_UNITS.get(data_type.unit)}," in str(declared.logical_type)
        return (data_type, _DTYPES[kept]) if kept == INT96 or is_plain else None
    given = _TYPES.get(kept, {}).get(data_type)
    return None if given is None else (given, _DTYPES[kept])


def _shares(sizes: Sequence[int], total: int) -> list[int]:
    """Share bytes out among the texts: half evenly, half by what they have in the file, where a dictionary hides some.

    ``sizes``: 0 of a column that has no texts.
    """
    whole, count = max(1, sum(sizes)), max(1, sum(size > 0 for size in sizes))
    return [max(1, (total * size // whole + total // count) // 2) for size in sizes]


def file_state(place: str | int) -> FileState:
    """What tells a file from another one under the same name; ``place``: its path or a descriptor of it.

    Raises:
        OSError: it is not there.
    """
    status = os.stat(place)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def direct_batches(
    path: str,
    file: pq.ParquetFile,
    index: int,
    names: Sequence[str],
    first_row: int,
    rows_max: int,
    bytes_max: int,
    late_but: Collection[str] | None = None,
    opened: FileState | None = None,
) -> Iterator[pa.RecordBatch | LateRows]:
    """Rows of a row group of a local file; see :class:`DirectGroup`.

    ``opened``: what pyarrow has open; None: not known, and only the size of the metadata is compared.

    Raises:
        UnsupportedPageError, DamagedPageError, OSError: see there.
    """
    if not names:
        raise UnsupportedPageError("no column is wanted")
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        # It was deleted; pyarrow has it open.
        raise UnsupportedPageError(f"the file cannot be opened again: {error}") from error
    try:
        end = os.pread(descriptor, _END.size, max(0, os.fstat(descriptor).st_size - _END.size))
        is_other = opened is not None and opened != file_state(descriptor)
        if is_other or end != _END.pack(file.metadata.serialized_size, b"PAR1"):
            raise UnsupportedPageError("the file was replaced")
        group = DirectGroup(descriptor, file, index, names)
        yield from group.batches(first_row, rows_max, bytes_max, late_but)
    finally:
        os.close(descriptor)
