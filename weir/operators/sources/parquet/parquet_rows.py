"""Rows of a Parquet row group in batches that are bounded by rows and by bytes, however large the group is.

A group is decoded batch by batch, never as a whole. How many bytes its rows take is known from the file where values
are stored as they are; with dictionaries a value of any length is one small number, so a few rows are decoded first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from weir.operators.sources.parquet.parquet_footer import check_footer
from weir.operators.sources.parquet.parquet_groups import FileState, direct_batches
from weir.operators.sources.parquet.parquet_headers import DamagedPageError
from weir.operators.sources.parquet.parquet_int96 import Int96Unit
from weir.operators.sources.parquet.parquet_late import LateRows
from weir.operators.sources.parquet.parquet_pages import UnsupportedPageError
from weir.rows.records import batch_bytes
from weir.specs.conditions import Range

#: Rows that are decoded to learn how long they are.
_PROBE_ROWS = 16
#: Batches this many times larger than wanted are made smaller from there on.
_TOLERANCE = 2
#: Columns of a file that holds more are read in pieces, not each chunk as a whole; and the bytes of all such pieces.
_WHOLE_BYTES_MAX = 16 << 20
_PIECE_BYTES_MIN, _PIECE_BYTES_MAX = 16 << 10, 1 << 20
#: Of a local file. What is larger than a piece, as pages with payload are, is read to where it is used; what is smaller
#: is copied there.
_LOCAL_PIECE_BYTES_MAX = 64 << 10


def open_parquet(
    source: Any,
    names: Collection[str] | Callable[[pq.ParquetFile], Collection[str]],
    unit_of: Callable[[pq.ParquetFile], Int96Unit | None] = lambda file: None,
) -> pq.ParquetFile:
    """Open a file to read these columns of it; the caller closes it.

    Args:
        source: what pyarrow reads: the path of a local file, or an open file, which is closed with the result if that
            is told to be (``force``).
        names: the columns, or what tells them of the file.
        unit_of: tells of the file in which unit its old timestamps are read; None: it has none.

    Raises:
        OSError, pa.ArrowException: it cannot be read.
    """
    piece_bytes_max = _LOCAL_PIECE_BYTES_MAX if isinstance(source, str) else _PIECE_BYTES_MAX
    check_footer(source)
    file = pq.ParquetFile(source)
    unit = unit_of(file)
    if unit is not None:
        metadata = file.metadata
        file.close()
        file = pq.ParquetFile(source, metadata=metadata, coerce_int96_timestamp_unit=unit)
    columns = _column_indices(file.metadata, names(file) if callable(names) else names)
    groups = (file.metadata.row_group(index) for index in range(file.num_row_groups))
    largest = max((sum(g.column(i).total_compressed_size for i in columns) for g in groups), default=0)
    if largest <= _WHOLE_BYTES_MAX:
        return file
    piece_bytes = max(_PIECE_BYTES_MIN, min(piece_bytes_max, _WHOLE_BYTES_MAX // max(1, len(columns))))
    metadata = file.metadata
    file.close()
    return pq.ParquetFile(
        source,
        metadata=metadata,
        buffer_size=piece_bytes,
        pre_buffer=False,
        coerce_int96_timestamp_unit=unit,
    )


def read_group(
    file: pq.ParquetFile,
    index: int,
    names: Sequence[str],
    first_row: int,
    rows_max: int,
    bytes_max: int,
    local_path: str | None = None,
    late_but: Collection[str] | None = None,
    take: Callable[[pa.RecordBatch], pa.RecordBatch] | None = None,
    opened: FileState | None = None,
) -> Iterator[pa.RecordBatch | LateRows]:
    """The rows of a group from one on.

    Args:
        file: made by :func:`open_parquet`.
        index: of the row group.
        names: the columns; of nested ones the paths of Parquet columns.
        first_row: number within the group of the first row that is wanted.
        rows_max: rows of a batch.
        bytes_max: about so many bytes has a batch at most, unless it is one row; pages of the file can be larger.
        local_path: of a local file, whose pages are then read without pyarrow's decoder where that can be.
        late_but: then long texts of another column than these may come late; None: no column.
        take: makes what is yielded of what was read of the columns, but not of late rows; None: these columns, in this
            order.
        opened: of a local file what ``file`` has open: it may have been replaced since; None: not known.

    Yields:
        Batches, see ``take``.

    Raises:
        OSError, pa.ArrowException: the file cannot be read.
    """
    given = first_row
    if local_path is not None:
        try:
            for rows in direct_batches(
                local_path, file, index, names, first_row, rows_max, bytes_max, late_but, opened
            ):
                if isinstance(rows, LateRows):
                    given += rows.late.rows
                    yield rows
                else:
                    given += rows.num_rows
                    yield rows if take is None else take(rows)
            return
        except (UnsupportedPageError, DamagedPageError):
            # Whether the file is right, and what is wrong with it, pyarrow says.
            pass
    for batch in _decoded(file, index, names, given, rows_max, bytes_max):
        yield batch.select(names) if take is None else take(batch)


def _decoded(
    file: pq.ParquetFile, index: int, names: Sequence[str], first_row: int, rows_max: int, bytes_max: int
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of :func:`read_group`, by pyarrow's decoder."""
    group = file.metadata.row_group(index)
    rows, is_probe = _rows_at_first(group, _column_indices(file.metadata, names), rows_max, bytes_max)
    given = first_row
    while given < group.num_rows:
        position, begin = 0, given
        for batch in file.iter_batches(rows, row_groups=[index], columns=list(names), use_threads=False):
            position += batch.num_rows
            if position <= begin:
                # Rows that an earlier pass gave, or an earlier run of the job.
                continue
            wanted = batch.slice(max(0, batch.num_rows - (position - begin))) if given == begin else batch
            given = position
            yield wanted
            size_bytes = batch_bytes(batch)
            fitting = max(1, min(rows_max, batch.num_rows * bytes_max // max(1, size_bytes)))
            if (is_probe and fitting > rows) or (fitting < rows and size_bytes > _TOLERANCE * bytes_max):
                rows = fitting
                break
        else:
            if given < group.num_rows:
                # Another pass would end here, too.
                raise pa.ArrowInvalid(f"a column has {given} rows, and its row group {group.num_rows}")
        is_probe = False


def _column_indices(metadata: pq.FileMetaData, names: Collection[str]) -> list[int]:
    """Leaf columns of top-level columns."""
    wanted = set(names)
    paths = (metadata.schema.column(index).path for index in range(metadata.num_columns))
    return [index for index, path in enumerate(paths) if path in wanted or path.split(".")[0] in wanted]


def _rows_at_first(
    group: pq.RowGroupMetaData, columns: Sequence[int], rows_max: int, bytes_max: int
) -> tuple[int, bool]:
    """Rows of the first batch, and whether they are a probe."""
    chunks = [group.column(index) for index in columns]
    encoded_bytes = sum(chunk.total_uncompressed_size for chunk in chunks)
    rows = max(1, min(rows_max, group.num_rows * bytes_max // max(1, encoded_bytes)))
    hidden_bytes = sum(
        min(chunk.num_values, rows) * chunk.total_uncompressed_size
        for chunk in chunks
        if chunk.physical_type == "BYTE_ARRAY" and any("DICTIONARY" in name for name in chunk.encodings)
    )
    # No value is longer than its column chunk.
    is_probe = encoded_bytes + hidden_bytes > bytes_max and rows > _PROBE_ROWS and hidden_bytes > 0
    return (_PROBE_ROWS, True) if is_probe else (rows, False)


def known_ranges(
    group: pq.RowGroupMetaData, numbers: Mapping[str, int]
) -> tuple[dict[str, Range], dict[str, int]]:
    """What the statistics of a row group say of columns: least and greatest value, and how many are null.

    What is not known is left out.

    Args:
        group: the row group.
        numbers: by column that of its Parquet column, the only one.
    """
    ranges: dict[str, Range] = {}
    nulls: dict[str, int] = {}
    for name, index in numbers.items():
        try:
            statistics = group.column(index).statistics
            if statistics is None:
                continue
            if statistics.has_null_count:
                nulls[name] = statistics.null_count
            if statistics.has_min_max:
                ranges[name] = (statistics.min, statistics.max)
        except (pa.ArrowException, ValueError, OverflowError):
            # Of a type or form that pyarrow does not read: not known.
            continue
    return ranges, nulls


def columns_with_nulls(metadata: pq.FileMetaData, index: int, names: Collection[str]) -> set[str]:
    """Return those of these columns that may have nulls in a row group, as far as its metadata says."""
    declared = [metadata.schema.column(place) for place in range(metadata.num_columns)]
    # With a dot it may be a column or a part of one.
    numbers = {c.path: at for at, c in enumerate(declared) if c.path in names and "." not in c.path}
    _, nulls = known_ranges(metadata.row_group(index), numbers)
    never = {column.path for column in declared if column.max_definition_level == 0}
    return {name for name in names if nulls.get(name) != 0 and name not in never}
