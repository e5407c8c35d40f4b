"""Specs of sources: where rows come from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import polars as pl
import pyarrow as pa
from typing_extensions import override

from weir.author.watermarks import WatermarkStrategy
from weir.errors import GraphError
from weir.rows.nested_paths import Path
from weir.specs.base import OperatorSpec, is_number
from weir.specs.conditions import AllOf, Condition
from weir.specs.expression_checks import check_event_time, expression_columns
from weir.specs.words import watermark_words
from weir.spelling import did_you_mean

#: What to do with a record that cannot be read.
OnBadRecord = Literal["dead_letter", "fail"]


@dataclass(frozen=True)
class SourceSpec(OperatorSpec):
    """Base of sources. ``schema`` has the user columns only; the reader appends the system columns."""

    schema: pa.Schema
    #: Column that holds the event time in ms since the epoch (integer); None: the ingest time.
    event_time_column: str | None = None
    #: Events per second over all subtasks; None: as fast as possible. Event k is due at start + k / rate.
    rate: float | None = None
    #: Stop after this many good rows over all subtasks; None: read everything.
    events_max: int | None = None
    #: Instead of ``event_time_column``: makes the event time of each row, an integer, of the user columns.
    event_time_expression: pl.Expr | None = field(default=None, metadata={"came_later": True})
    #: How far event time has come; None: as config.json says.
    watermark: WatermarkStrategy | None = field(default=None, metadata={"came_later": True})

    @property
    @override
    def event_time_words(self) -> str | None:
        expression = self.event_time_expression
        time = self.event_time_column if expression is None else str(expression)
        return watermark_words(time or "the time of reading", self.watermark)

    @property
    def makes_event_times(self) -> bool:
        """Return whether rows have another event time than that of reading; see :class:`OperatorSpec`."""
        return self.event_time_column is not None or self.event_time_expression is not None

    @property
    def schema_read(self) -> pa.Schema:
        """User columns that are decoded: of a source that can leave some out, those that it was told to read."""
        reads: tuple[str, ...] | None = getattr(self, "reads", None)
        return self.schema if reads is None else pa.schema([self.schema.field(name) for name in reads])

    @property
    def ends(self) -> bool:
        """Return whether the input ends; of a source of the author's own: unless it looks for new splits."""
        return not getattr(self, "follow", False)

    def reading(self, wanted: frozenset[str]) -> SourceSpec:
        """The same source, told which columns anybody reads.

        Those of sources with a field ``reads`` do; the others decode every column. What the event time is made of is
        read in any case, and so is one column at least; a generator of watermarks sees every column.
        """
        if not hasattr(self, "reads") or (
            self.watermark is not None and self.watermark.generator is not None
        ):
            return self
        timing = {self.event_time_column}
        if self.event_time_expression is not None:
            timing |= expression_columns([self.event_time_expression], self.schema)
        names = [name for name in self.schema.names if name in wanted or name in timing]
        names = names or self.schema.names[:1]
        changed: Any = None if names == self.schema.names else tuple(names)
        return replace(self, **{"reads": changed})

    def filtering(self, conditions: Sequence[Condition]) -> SourceSpec:
        """The same source, told that only rows that meet these conditions are of use; most sources give all the same.

        A source that is paced, or gives a number of events, gives every row.
        """
        if not conditions or not hasattr(self, "condition") or self.rate or self.events_max is not None:
            return self
        joined: Any = conditions[0] if len(conditions) == 1 else AllOf(tuple(conditions))
        return replace(self, **{"condition": joined})

    def check(self, step: str) -> None:
        """Refuse a rate, a limit or an event-time column that cannot work.

        Raises:
            GraphError: names the step and the setting.
        """
        rate = self.rate
        if rate is not None and not (is_number(rate) and 0 < rate < float("inf")):
            raise GraphError(
                f"step {step!r}: rate is {rate!r}; it must be events per second above 0, or None"
            )
        limit = self.events_max
        if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 0):
            raise GraphError(
                f"step {step!r}: events_max is {limit!r}; it must be a whole number from 0 on, or None"
            )
        column = self.event_time_column
        if self.event_time_expression is not None:
            if column is not None:
                raise GraphError(f"step {step!r}: event_time is a column and an expression; give one of them")
            check_event_time(step, self.event_time_expression, self.schema)
        if column is None:
            return
        if column not in self.schema.names:
            raise GraphError(
                f"step {step!r}: there is no event-time column {column!r}"
                f"{did_you_mean(column, self.schema.names)}"
            )
        dtype = self.schema.field(column).type
        if not pa.types.is_integer(dtype):
            raise GraphError(
                f"step {step!r}: event-time column {column!r} is {dtype}; it must be integer ms since 1970"
                + (f", as pl.col({column!r}).dt.epoch('ms') gives" if pa.types.is_temporal(dtype) else "")
            )

    @property
    def bad_records(self) -> OnBadRecord:
        """What happens to records that cannot be read; sources that have a choice call it ``on_bad_record``."""
        choice: OnBadRecord = getattr(self, "on_bad_record", "dead_letter")
        return choice


#: Longer lines are bad records unless a source says otherwise: rows of 16 MB are read, with room for escapes.
LINE_BYTES_MAX = 32 << 20
#: In which order files that are found at the same time are read.
FileOrder = Literal["name", "modified"]
#: How input files are compressed: as their names end, not at all, or as said.
Compression = Literal["auto", "none", "gzip", "zstd", "bz2", "lz4"]


@dataclass(frozen=True)
class FileSpec(SourceSpec):
    """Base of sources of files. What came to some of them later than to others is in each: fingerprints hang on it."""

    path: str = ""
    on_bad_record: OnBadRecord = "dead_letter"
    #: Columns that are decoded; None: all.
    reads: tuple[str, ...] | None = field(default=None, metadata={"came_later": True})
    #: With ``follow``: of the files that are found at the same time.
    order: FileOrder = field(default="name", metadata={"came_later": True})


@dataclass(frozen=True)
class JsonLinesSpec(FileSpec):
    """JSON objects, one a line: a file, a directory of parts, or a glob; compressed files are read too."""

    kind: ClassVar[str] = "json_lines_source"
    runtime: ClassVar[str] = "weir.operators.sources.json.json_lines:JsonLinesReader"
    #: A longer line goes to the dead letters without being parsed.
    line_bytes_max: int = field(default=LINE_BYTES_MAX, metadata={"was": 8 << 20})
    #: Never end: take in files that turn up while the job runs.
    follow: bool = field(default=False, metadata={"came_later": True})
    #: One subtask reads all of a file.
    ordered: bool = field(default=False, metadata={"came_later": True})
    #: Of columns that lie in nested values: column, and what leads to its values.
    paths: tuple[tuple[str, Path], ...] = field(default=(), metadata={"came_later": True})
    compression: Compression = field(default="auto", metadata={"came_later": True})
    #: With ``follow``: what is added to files later is read, too.
    grows: bool = field(default=False, metadata={"came_later": True})


@dataclass(frozen=True)
class CsvSpec(FileSpec):
    """CSV: a file, a directory of parts, or a glob; compressed files are read too."""

    kind: ClassVar[str] = "csv_source"
    runtime: ClassVar[str] = "weir.operators.sources.csv.csv_source:CsvReader"
    delimiter: str = ","
    #: Empty: there are no quotes.
    quote: str = '"'
    #: Whether the first record of each file names its fields.
    header: bool = True
    #: Without a header: the names of the fields, in order.
    columns: tuple[str, ...] = ()
    #: Unquoted fields that are null.
    null_values: tuple[str, ...] = ("",)
    #: Whether a field in quotes may hold a newline. If none does, files are divided among subtasks.
    quoted_newlines: bool = True
    #: A longer record goes to the dead letters without being parsed.
    line_bytes_max: int = field(default=LINE_BYTES_MAX, metadata={"was": 8 << 20})
    #: Never end: take in files that turn up while the job runs.
    follow: bool = False
    #: One subtask reads all of a file.
    ordered: bool = False
    compression: Compression = "auto"
    #: With ``follow``: what is added to files later is read, too.
    grows: bool = field(default=False, metadata={"came_later": True})
    #: In quoted fields it stands before quotes and itself; empty: nothing does.
    escape: str = field(default="", metadata={"came_later": True})


@dataclass(frozen=True)
class ParquetSpec(FileSpec):
    """Parquet: a file, a directory of parts, or a glob."""

    kind: ClassVar[str] = "parquet_source"
    runtime: ClassVar[str] = "weir.operators.sources.parquet.parquet_source:ParquetReader"
    #: Never end: take in files that turn up while the job runs.
    follow: bool = field(default=False, metadata={"came_later": True})
    #: One subtask reads all of a file.
    ordered: bool = field(default=False, metadata={"came_later": True})
    #: What every row that passes the filters after the source meets.
    condition: Condition | None = field(default=None, metadata={"came_later": True})
    #: Columns whose values lie elsewhere than their names say, and what leads to them.
    paths: tuple[tuple[str, Path], ...] = field(default=(), metadata={"came_later": True})


@dataclass(frozen=True)
class ArrowIpcSpec(FileSpec):
    """Arrow IPC files or streams: a file, a directory of parts, or a glob."""

    kind: ClassVar[str] = "arrow_ipc_source"
    runtime: ClassVar[str] = "weir.operators.sources.ipc.arrow_ipc:ArrowIpcReader"
    #: Never end: take in files that turn up while the job runs.
    follow: bool = False
    #: One subtask reads all of a file.
    ordered: bool = False
    #: Columns whose values lie elsewhere than their names say, and what leads to them.
    paths: tuple[tuple[str, Path], ...] = field(default=(), metadata={"came_later": True})


@dataclass(frozen=True)
class UserSourceSpec(SourceSpec):
    """A user's source: ``factory()`` makes a ``weir.Source`` per subtask; or ``factory`` is a generator function."""

    kind: ClassVar[str] = "user_source"
    runtime: ClassVar[str] = "weir.operators.sources.files.read_ahead:create_user_reader"
    factory_kind: ClassVar[str] = (
        "a generator function read(position), or a class (or a function without arguments) that makes a weir.Source"
    )
    factory: Callable[..., Any] = lambda: None
    on_bad_record: OnBadRecord = "dead_letter"
    #: How often to ask for new splits; None: only at the start.
    discover_ms: float | None = None

    @property
    @override
    def ends(self) -> bool:
        return self.discover_ms is None
