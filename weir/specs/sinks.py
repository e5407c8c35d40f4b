"""Specs of sinks: where rows go."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

import pyarrow as pa
from typing_extensions import override

from weir.errors import GraphError
from weir.specs.base import OperatorSpec, is_number

if TYPE_CHECKING:
    from weir.author.operator import Operator


@dataclass(frozen=True)
class SinkSpec(OperatorSpec):
    """Base of sinks: nothing leaves them, and a branch ends in one."""

    takes_changes: ClassVar[bool] = True


#: Types of a column that has whole values.
TEXT_TYPES = (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())


def check_parts(
    step: str, schema: pa.Schema, *parts: tuple[str, str | None, tuple[pa.DataType, ...]]
) -> None:
    """Check the columns of which a sink makes parts of its records.

    Args:
        step: for messages.
        schema: of the rows.
        parts: of each part what it is called, its column (None: the records are without it), and the types that it may
            have; none: of any that is not nested.

    Raises:
        GraphError: there is no such column, or it has another type.
    """
    for what, name, types in parts:
        if name is None:
            continue
        if name not in schema.names:
            raise GraphError(f"step {step!r}: {what} is {name!r}; there is {', '.join(schema.names)}")
        found = schema.field(name).type
        if found not in types if types else pa.types.is_nested(found):
            known = " or ".join(map(str, types)) or "a plain value"
            raise GraphError(
                f"step {step!r}: {what} is the column {name!r} of type {found}; it must be {known}"
            )


@dataclass(frozen=True)
class BlackholeSpec(SinkSpec):
    """Count rows and drop them."""

    kind: ClassVar[str] = "blackhole_sink"
    runtime: ClassVar[str] = "weir.operators.sinks.trial_sinks:BlackholeSink"


@dataclass(frozen=True)
class PrintSpec(SinkSpec):
    """Print rows as JSON lines on standard output; at most ``rows_max`` (None: all)."""

    kind: ClassVar[str] = "print_sink"
    runtime: ClassVar[str] = "weir.operators.sinks.trial_sinks:PrintSink"
    rows_max: int | None = None


@dataclass(frozen=True)
class DeadLettersSpec(SinkSpec):
    """Put every row into the step's dead-letter file: ``late.sink("late_rows", weir.DeadLetters("late"))``.

    Rows that end here were put aside by the job itself: however many there are, they do not fail it.
    """

    kind: ClassVar[str] = "dead_letter_sink"
    runtime: ClassVar[str] = "weir.operators.sinks.trial_sinks:DeadLetterSink"
    rejects_rows: ClassVar[bool] = True
    #: What their dead letters say is wrong with them, one line.
    reason: str

    def output_schema(self, step: str, inputs: tuple[pa.Schema, ...]) -> pa.Schema:
        """The input's; see :class:`OperatorSpec`."""
        if not isinstance(self.reason, str) or not self.reason.strip() or "\n" in self.reason:
            raise GraphError(
                f"step {step!r}: the reason of dead letters is {self.reason!r}; give a line of text, "
                "weir.DeadLetters('late')"
            )
        return super().output_schema(step, inputs)


#: What a file sink with partitions rolls by unless it is told otherwise.
ROLL_MS = 60_000
ROLL_BYTES = 128 << 20

TextCompression = Literal["gzip", "zstd"]
ParquetCompression = Literal["none", "snappy", "gzip", "brotli", "lz4", "zstd"]


#: Of a field that came later: graphs without it keep their fingerprints.
_LATER = {"came_later": True}


@dataclass(frozen=True)
class FileSinkSpec(SinkSpec):
    """Write user columns to files below ``path``; exactly once.

    Without ``partition_by``, ``roll_ms`` and ``roll_bytes`` each checkpoint makes one file
    ``path/part-<subtask>-<generation>-<sequence>.<format>`` per subtask that had rows. With any of them, rows of many
    checkpoints are held, hidden and durable, until the sink *rolls*: it writes them as one file per partition.

    Attributes:
        path: a directory, or a URI that ``pyarrow.fs`` understands, such as ``s3://bucket/folder``.
        partition_by: columns whose values name folders, as Hive has it: ``path/day=2026-11-22/country=be/part-...``.
            They are not in the files.
        roll_ms: roll when the oldest row was held for so long (60 s where only another of the three is given). Rows are
            visible two checkpoints after that.
        roll_bytes: roll when a subtask holds so many bytes of rows, over all partitions, as Arrow has them in memory
            (128 MiB where only another of the three is given).
    """

    path: str
    partition_by: Sequence[str] = field(default=(), metadata=_LATER, kw_only=True)
    roll_ms: float | None = field(default=None, metadata=_LATER, kw_only=True)
    roll_bytes: int | None = field(default=None, metadata=_LATER, kw_only=True)

    def __post_init__(self) -> None:
        if not isinstance(self.partition_by, str):
            object.__setattr__(self, "partition_by", tuple(self.partition_by))

    @property
    def rolls(self) -> bool:
        """Return whether files hold the rows of several checkpoints."""
        return bool(self.partition_by) or self.roll_ms is not None or self.roll_bytes is not None

    def output_schema(self, step: str, inputs: tuple[pa.Schema, ...]) -> pa.Schema:
        """The columns of the input; see the base class."""
        schema = super().output_schema(step, inputs)
        try:
            self.check(schema)
        except GraphError as error:
            raise GraphError(f"step {step!r}: {error}") from error
        return schema

    def check(self, schema: pa.Schema) -> None:
        """Look at the settings, for rows of these columns.

        Raises:
            GraphError: one is wrong; the message has no step.
        """
        if not isinstance(self.path, str) or not self.path:
            raise GraphError(f"path is {self.path!r}; give a directory or a URI such as s3://bucket/folder")
        if isinstance(self.partition_by, str):
            raise GraphError(f"partition_by is {self.partition_by!r}; give a list: [{self.partition_by!r}]")
        for name in self.partition_by:
            if name not in schema.names:
                raise GraphError(f"partition_by has {name!r}; there is {', '.join(schema.names)}")
            if pa.types.is_nested(schema.field(name).type) or pa.types.is_floating(schema.field(name).type):
                kind = schema.field(name).type
                raise GraphError(f"partition_by has {name!r} of type {kind}, whose values name no folder")
        if len(set(self.partition_by)) >= len(schema):
            raise GraphError("partition_by has every column; nothing is left for the files")
        if self.roll_ms is not None and not (is_number(self.roll_ms) and self.roll_ms >= 0):
            raise GraphError(f"roll_ms is {self.roll_ms!r}; it must be a number of milliseconds, at least 0")
        if self.roll_bytes is not None and not (is_number(self.roll_bytes) and self.roll_bytes >= 1):
            raise GraphError(f"roll_bytes is {self.roll_bytes!r}; it must be a number of bytes, at least 1")


def _check_choice(name: str, value: object, choices: tuple[str | None, ...]) -> None:
    if value not in choices:
        raise GraphError(f"{name} is {value!r}; it is one of {', '.join(map(repr, choices))}")


@dataclass(frozen=True)
class JsonLinesSinkSpec(FileSinkSpec):
    """Write user columns as JSON lines, ``.jsonl``; see :class:`FileSinkSpec`.

    Attributes:
        compression: "gzip" (``.jsonl.gz``), "zstd" (``.jsonl.zst``), or None.
    """

    kind: ClassVar[str] = "json_lines_sink"
    runtime: ClassVar[str] = "weir.operators.sinks.file_sinks:create_file_sink"
    compression: TextCompression | None = field(default=None, metadata=_LATER, kw_only=True)

    @override
    def check(self, schema: pa.Schema) -> None:
        super().check(schema)
        _check_choice("compression", self.compression, (None, "gzip", "zstd"))


@dataclass(frozen=True)
class CsvSinkSpec(FileSinkSpec):
    """Write user columns as CSV, ``.csv``, with the names of the columns in the first line; see :class:`FileSinkSpec`.

    A null is an empty field, an empty string ``""``. Lists, structs and bytes have no form in CSV.

    Attributes:
        separator: one byte between two fields.
        compression: "gzip" (``.csv.gz``), "zstd" (``.csv.zst``), or None.
    """

    kind: ClassVar[str] = "csv_sink"
    runtime: ClassVar[str] = "weir.operators.sinks.file_sinks:create_file_sink"
    separator: str = field(default=",", metadata=_LATER, kw_only=True)
    compression: TextCompression | None = field(default=None, metadata=_LATER, kw_only=True)

    @override
    def check(self, schema: pa.Schema) -> None:
        super().check(schema)
        _check_choice("compression", self.compression, (None, "gzip", "zstd"))
        if (
            not (isinstance(self.separator, str) and len(self.separator.encode()) == 1)
            or self.separator in '"\r\n'
        ):
            raise GraphError(f"separator is {self.separator!r}; it is one byte, and no quote or line break")
        for column in schema:
            kind = column.type
            if pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_duration(kind):
                raise GraphError(
                    f"column {column.name!r} is {column.type}, which CSV cannot hold; drop it, or make it a text"
                )


@dataclass(frozen=True)
class ParquetSinkSpec(FileSinkSpec):
    """Write user columns as Parquet, ``.parquet``; see :class:`FileSinkSpec`.

    Attributes:
        compression: codec of the pages.
        compression_level: of the codec; None: its default.
        row_group_rows: a row group is written when it has so many rows, or ``row_group_bytes``.
        row_group_bytes: as Arrow has them in memory.
    """

    kind: ClassVar[str] = "parquet_sink"
    runtime: ClassVar[str] = "weir.operators.sinks.file_sinks:create_file_sink"
    compression: ParquetCompression = field(default="zstd", metadata=_LATER, kw_only=True)
    compression_level: int | None = field(default=None, metadata=_LATER, kw_only=True)
    row_group_rows: int = field(default=512 << 10, metadata=_LATER, kw_only=True)
    row_group_bytes: int = field(default=64 << 20, metadata=_LATER, kw_only=True)

    @override
    def check(self, schema: pa.Schema) -> None:
        super().check(schema)
        _check_choice("compression", self.compression, ("none", "snappy", "gzip", "brotli", "lz4", "zstd"))
        for name in ("row_group_rows", "row_group_bytes"):
            if not getattr(self, name) >= 1:
                raise GraphError(f"{name} is {getattr(self, name)!r}; it must be at least 1")
        if self.compression_level is not None:
            _check_level(self.compression, self.compression_level)


def _check_level(codec: str, level: int) -> None:
    try:
        low, high = (
            limit(codec) for limit in (pa.Codec.minimum_compression_level, pa.Codec.maximum_compression_level)
        )
    except ValueError:
        raise GraphError(f"compression_level is {level!r}; {codec} has no levels") from None
    if not low <= level <= high:
        raise GraphError(f"compression_level is {level!r}; of {codec} it is {low} to {high}")


@dataclass(frozen=True)
class DeltaSinkSpec(ParquetSinkSpec):
    """Append user columns to a Delta Lake table, exactly once; needs ``pip install weir[delta]``.

    See :class:`FileSinkSpec`. Each subtask makes one Delta commit per roll: for every checkpoint that has rows,
    unless ``roll_ms`` or ``roll_bytes`` say otherwise. The table is created if it is not there; columns and partitions
    of one that is must be the same.
    """

    kind: ClassVar[str] = "delta_sink"
    runtime: ClassVar[str] = "weir.operators.sinks.delta_sink:DeltaSink"
    roll_ms: float | None = field(default=0, metadata=_LATER, kw_only=True)

    @override
    def check(self, schema: pa.Schema) -> None:
        super().check(schema)
        for column in schema:
            kind = column.type
            foreign = _foreign_to_delta(kind)
            if foreign is not None or (pa.types.is_timestamp(kind) and kind.unit != "us"):
                raise GraphError(f"column {column.name!r} is {kind}, which Delta Lake has not; cast it")
            if column.name in self.partition_by and pa.types.is_binary(kind):
                raise GraphError(
                    f"column {column.name!r} is {kind}, and Delta Lake writes partitions as texts, which bytes are "
                    f'not; take pl.col({column.name!r}).bin.encode("hex")'
                )
            if pa.types.is_timestamp(kind) and kind.tz not in (None, "UTC"):
                raise GraphError(
                    f"column {column.name!r} is {kind}, and Delta Lake has no zone but UTC; take "
                    f'pl.col({column.name!r}).dt.convert_time_zone("UTC")'
                )


def _foreign_to_delta(dtype: pa.DataType) -> pa.DataType | None:
    """A type that Delta Lake has not, also within lists and structs; None: there is none.

    Its library takes unsigned integers for signed ones, and no reader reads what is beyond them.
    """
    for index in range(dtype.num_fields):
        if (found := _foreign_to_delta(dtype.field(index).type)) is not None:
            return found
    is_number = pa.types.is_unsigned_integer(dtype) or pa.types.is_duration(dtype)
    is_fine = pa.types.is_timestamp(dtype) and dtype.unit == "ns"
    return dtype if is_number or is_fine or pa.types.is_time(dtype) else None


@dataclass(frozen=True)
class LatencySinkSpec(SinkSpec):
    """Write one ``arrival_ms,latency_ms`` line per event, with a sidecar JSON, below ``directory``."""

    kind: ClassVar[str] = "latency_sink"
    runtime: ClassVar[str] = "weir.operators.sinks.latency_sink:LatencySink"
    directory: str
    name: str


@dataclass(frozen=True)
class UserSinkSpec(SinkSpec):
    """A user's sink: ``factory()`` makes a ``weir.TwoPhaseSink`` (or another operator) per subtask."""

    kind: ClassVar[str] = "user_sink"
    runtime: ClassVar[str] = "weir.operators.sinks.two_phase:create_user_sink"
    factory_kind: ClassVar[str] = (
        "a class (or a function without arguments) that makes a weir.Sink or weir.TwoPhaseSink"
    )
    factory: Callable[[], Operator]


@dataclass(frozen=True)
class CollectSpec(SinkSpec):
    """Keep rows in this process: for ``weir.run`` and ``weir.testing``."""

    kind: ClassVar[str] = "collect_sink"
