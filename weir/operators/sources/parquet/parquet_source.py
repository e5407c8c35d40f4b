"""The Parquet source: row groups are its splits, whose places are row numbers of the file."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from typing_extensions import override

from weir.errors import InputError
from weir.operators.sources.files.columnar_paths import FilePlaces, WantedLeaves, wanted_leaves
from weir.operators.sources.files.columnar_reader import ColumnarReader
from weir.operators.sources.files.input_files import unreadable
from weir.operators.sources.files.positions import Rest
from weir.operators.sources.files.splits import share_events
from weir.operators.sources.parquet.parquet_footer import check_footer
from weir.operators.sources.parquet.parquet_groups import FileState, file_state
from weir.operators.sources.parquet.parquet_int96 import (
    Int96Unit,
    NanosecondsError,
    check_nanoseconds,
    int96_columns,
    int96_schemas,
)
from weir.operators.sources.parquet.parquet_late import LateRows, UnexpectedNullsError
from weir.operators.sources.parquet.parquet_rows import (
    columns_with_nulls,
    known_ranges,
    open_parquet,
    read_group,
)
from weir.rows.records import BATCH_BYTES_MAX
from weir.rows.utf8 import wrong_texts
from weir.specs import ParquetSpec
from weir.specs.conditions import columns_of, may_hold


class ParquetReader(ColumnarReader):
    """Reads one subtask's row groups.

    Columns are found by name or path and must have the schema's types, or types that widen to them without loss (int32
    where the schema says int64); other columns are not read. A row with a null in
    a field that is not nullable (or in the event-time column), or with a text that is not UTF-8, goes to the dead
    letters; its position is the row's number in the file. Replayable: a snapshot holds the number of the first row
    that was not given out.
    """

    _position_unit = "row"

    def __init__(self, spec: ParquetSpec) -> None:
        super().__init__(spec)
        self._spec = spec
        self._file: pq.ParquetFile | None = None
        self._file_path = ""
        #: In the open file.
        self._places = FilePlaces.nowhere()
        self._leaves = WantedLeaves({}, [])
        #: In which its old timestamps are read.
        self._int96_unit: Int96Unit | None = None
        #: Of a local file: what is open; None: not known.
        self._opened: FileState | None = None
        #: What is left of the row group; decoded batch by batch.
        self._batches: Iterator[pa.RecordBatch | LateRows] = iter(())
        #: Row numbers at which the open file's row groups end.
        self._group_stops: list[int] = []
        #: Long texts of another column may come late; None: no column.
        self._late_but: frozenset[str] | None = None

    @override
    def give_late(self, but: Collection[str]) -> None:
        spec = self._spec
        # Nobody may ask for rows that are not read, nor for a part of them.
        gives_whole = spec.rate is None and spec.events_max is None and spec.event_time_expression is None
        if gives_whole and self._strategy.generator is None:
            self._late_but = frozenset(but)

    def close(self) -> None:
        """Release the file."""
        self._batches = iter(())
        if self._file is not None:
            self._file.close(force=True)
            self._file = None

    def _resume_input(self, shares: list[list[Rest]]) -> None:
        for path in dict.fromkeys(rest.path for rest in shares[self._rank]):
            self._parts(path)
        super()._resume_input(shares)

    def _parts(self, path: str) -> list[Rest]:
        try:
            source = self._files.arrow_source(path)
            check_footer(source)
            with pq.ParquetFile(source) as file:
                self._found_in(path, file)
                counts = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
        except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
            raise _unreadable(path, error) from error
        edges = np.cumsum([0, *counts]).tolist()
        return [Rest(path, start, stop) for start, stop in itertools.pairwise(edges) if stop > start]

    def _input_quota(self, events_max: int) -> int:
        available = [sum(group.stop - group.start for group in groups) for groups in self._assigned]
        return share_events(events_max, available)[self._rank]

    def _read_batch(self) -> pa.RecordBatch | None:
        while True:
            batch = next(self._batches, None)
            if batch is None:
                if not self._pending:
                    self._goes_on_to(None)
                    return None
                group = self._pending.pop()
                self._goes_on_to(group.path)
                if self._passes_over(group):
                    continue
                self._part, self._next = group, group.start
                self._batches = self._read(group)
                continue
            first = self._next
            if isinstance(batch, LateRows):
                late, batch = batch.late, batch.batch
                self._next += batch.num_rows
                lacks = any(batch.column(n).null_count for n in self._required if n != late.field.name)
                if not lacks and not wrong_texts(batch):
                    self._decoded, self._good = first, np.ones(batch.num_rows, dtype=np.bool_)
                    self._late = late
                    late.put_aside = partial(self._put_aside_late, first)
                    late.field = self._spec.schema_read.field(late.place)
                    schema = self._spec.schema_read.remove(late.place)
                    return pa.RecordBatch.from_arrays(batch.columns, schema=schema)
                batch = late.put_into(batch, late.array())
            else:
                self._next += batch.num_rows
            good = self._good_rows(batch, first)
            if good.num_rows:
                return good

    def _put_aside_late(self, first: int, row: int, reason: str, record: pa.RecordBatch) -> None:
        """A row after ``first``, which was given out without the texts that came late, is bad."""
        self._reject(first + row, reason, record.select(self._spec.schema_read.names))

    def _passes_over(self, group: Rest) -> bool:
        """Whether no row of the group can pass the filters after the source, nor is a bad one, by its statistics."""
        condition = self._spec.condition
        if condition is None:
            return False
        file = self._open_file(group.path)
        names = columns_of(condition).union(self._required)
        time_column = self._spec.event_time_column
        if self._spec.event_time_expression is not None or self._strategy.generator is not None:
            # What these rows would say of event time is not known.
            return False
        ranges, null_counts = known_ranges(
            file.metadata.row_group(self._index_of(group)), self._leaves.single(names)
        )
        for name, constant in self._places.constants.items():
            if constant.is_valid:
                ranges[name], null_counts[name] = (constant.as_py(), constant.as_py()), 0
        if any(null_counts.get(name) != 0 for name in self._required) or may_hold(condition, ranges):
            return False
        if time_column is not None:
            # Rows that a filter drops move the watermark, too.
            times = ranges.get(time_column)
            if times is None or not isinstance(times[0], int) or not isinstance(times[1], int):
                return False
            if self._event_times is not None and not self._event_times.are_good(times[0], times[1]):
                return False
            self._source_times.splits.follow(self._split_name(), times[1])
        return True

    def _read(self, group: Rest) -> Iterator[pa.RecordBatch | LateRows]:
        """The group's rows, decoded batch by batch while they are taken."""
        file = self._open_file(group.path)
        places = self._places
        index = self._index_of(group)
        first = file.metadata.row_group(index).num_rows - (group.stop - group.start)
        # Both time columns are in a batch, too.
        bytes_max = BATCH_BYTES_MAX - 16 * min(self.rows_decoded_max, BATCH_BYTES_MAX >> 8)
        source = self._files.arrow_source(group.path)
        local_path = source if isinstance(source, str) and places.are_flat else None
        late_but = None
        if self._late_but is not None and local_path is not None:
            never = {str(path[0]) for name, path in places.paths.items() if name in self._late_but}
            required = {str(path[0]) for name, path in places.paths.items() if name in self._required}
            shared = {name for name in places.top_names if len(places.of_column(name)) > 1}
            late_but = {*never, *shared, *columns_with_nulls(file.metadata, index, required)}
        names = places.top_names if places.are_flat else self._leaves.paths
        if self._int96_unit == "ns":
            self._check_nanoseconds(group.path, index, names)
        batches = read_group(
            file,
            index,
            names,
            first,
            self.rows_decoded_max,
            bytes_max,
            local_path,
            late_but,
            take=places.taken,
            opened=self._opened,
        )
        nullable = pa.schema([field.with_nullable(True) for field in self._spec.schema_read])

        def widened(rows: pa.RecordBatch | LateRows) -> pa.RecordBatch | LateRows:
            if not isinstance(rows, LateRows):
                return _cast(rows, nullable)
            late = rows.late
            [name] = places.of_column(late.field.name)
            late.place = nullable.names.index(name)
            late.field = nullable.field(late.place)
            late.unreadable = partial(_unreadable, group.path)
            late.is_required = name in self._required
            return LateRows(_cast(places.taken(rows.batch, name), nullable.remove(late.place)), late)

        return _readable(group.path, map(widened, batches))

    def _check_nanoseconds(self, path: str, index: int, names: Collection[str]) -> None:
        assert self._file is not None
        columns = int96_columns(self._file)
        leaves = (self._file.schema.column(place).path for place in columns)
        wanted = [leaf for leaf in leaves if leaf in names or leaf.split(".")[0] in names]
        if not wanted:
            return
        try:
            check_nanoseconds(self._files.arrow_source(path), index, wanted)
        except (OSError, pa.ArrowException) as error:
            raise _unreadable(path, error) from error

    def _found_in(self, path: str, file: pq.ParquetFile) -> tuple[FilePlaces, Int96Unit | None]:
        """Where the columns are in a file, and in which unit its old timestamps are to be read; None: it has none.

        Raises:
            InputError: it does not have each column of the schema.
        """
        columns = int96_columns(file)
        if not columns:
            return self._check_schema(path, file.schema_arrow), None
        refused: list[InputError] = []
        for unit, found in int96_schemas(file.schema_arrow, columns):
            try:
                return self._check_schema(path, found), unit
            except InputError as error:
                refused.append(error)
        raise refused[0]

    def _open_file(self, path: str) -> pq.ParquetFile:
        def unit(file: pq.ParquetFile) -> Int96Unit | None:
            self._places, self._int96_unit = self._found_in(path, file)
            return self._int96_unit

        def names(file: pq.ParquetFile) -> Collection[str]:
            leaf_paths = [file.schema.column(place).path for place in range(file.metadata.num_columns)]
            self._leaves = wanted_leaves(file.schema_arrow, self._places, leaf_paths)
            return self._leaves.paths

        if self._file is None or self._file_path != path:
            self.close()
            source = self._files.arrow_source(path)
            try:
                self._opened = file_state(source) if isinstance(source, str) else None
                self._file = open_parquet(source, names, unit)
            except (OSError, pa.ArrowException) as error:
                raise _unreadable(path, error) from error
            self._file_path = path
            metadata = self._file.metadata
            counts = [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)]
            self._group_stops = np.cumsum(counts).tolist()
        return self._file

    def _index_of(self, group: Rest) -> int:
        """Number of a row group in the open file."""
        stops = self._group_stops
        index = stops.index(group.stop) if group.stop in stops else -1
        if index < 0 or group.start < (stops[index - 1] if index else 0):
            raise InputError(
                f"{group.path}: it was replaced after it was found, and its row groups are others: start the job "
                "again, and leave the files that it reads as they are"
            )
        return index

    def _told(self, place: int) -> tuple[str, int, str]:
        assert self._part is not None
        return self._part.path, place, ""


def _cast(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch with the types of a schema; mostly it has them already."""
    return batch if batch.schema.equals(schema) else batch.cast(schema)


def _readable(path: str, batches: Iterator[pa.RecordBatch | LateRows]) -> Iterator[pa.RecordBatch | LateRows]:
    try:
        yield from batches
    except (OSError, pa.ArrowException) as error:
        raise _unreadable(path, error) from error


def _unreadable(path: str, error: Exception) -> InputError:
    mend = "check that it is a Parquet file"
    if isinstance(error, NanosecondsError):
        mend = 'declare the column as pl.Datetime("us")'
    if isinstance(error, UnexpectedNullsError):
        mend = "write it again, or let the source's schema say that the column may be null"
    return unreadable(path, error, mend)
