"""Specs of the source and the sink of the replicated log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import pyarrow as pa
from typing_extensions import override

from weir.errors import GraphError
from weir.keys.hashing import check_key_type
from weir.rows.nested_paths import Path
from weir.specs.kafka import Delivery, OnTruncation, ValueFormat
from weir.specs.kafka_values import ValueSpec
from weir.specs.sinks import TEXT_TYPES, SinkSpec, check_parts
from weir.specs.sources import UserSourceSpec

#: What a column of a record has that is not in its value.
LogPart = Literal["id", "topic", "partition", "offset", "timestamp"]
LogCompression = Literal["none", "lz4", "zstd"]
_INTEGER_TYPES = (pa.int32(), pa.int64())


@dataclass(frozen=True)
class LogSpec(UserSourceSpec):
    """Records of a topic of the log; each partition is a split."""

    kind: ClassVar[str] = "log_source"
    runtime: ClassVar[str] = "weir.operators.log:create_log_reader"
    bootstrap: str = ""
    topic: str = ""
    value: ValueFormat = "json"
    #: What the values are, if they are "coded".
    coding: ValueSpec | None = None
    #: Of columns that lie in nested values: column, and what leads to its values.
    paths: tuple[tuple[str, Path], ...] = ()
    #: Column, and what it has instead of a part of the value.
    parts: tuple[tuple[str, LogPart], ...] = ()
    #: ``earliest``, ``latest``, ms since 1970, or (partition, offset) of some; others: earliest.
    start: Literal["earliest", "latest"] | int | tuple[tuple[int, int], ...] = "earliest"
    #: End where the partitions ended when the job began.
    bounded: bool = False
    on_truncation: OnTruncation = "fail"
    #: Columns that are decoded; None: all.
    reads: tuple[str, ...] | None = None

    @property
    @override
    def ends(self) -> bool:
        return self.bounded


@dataclass(frozen=True)
class LogSinkSpec(SinkSpec):
    """Write each row as a record of a topic of the log."""

    kind: ClassVar[str] = "log_sink"
    runtime: ClassVar[str] = "weir.operators.log:create_log_sink"
    bootstrap: str
    topic: str
    #: Integer column with the records' ids; None: the event times are.
    id: str | None = None
    #: Column that chooses the partition; None: batches go to one after the other.
    key: str | None = None
    #: Column with the whole record, text or bytes; None: an object of the other columns.
    value: str | None = None
    #: How the object is written; None: in JSON.
    coding: ValueSpec | None = None
    #: Integer column that chooses the partition, in place of ``key``.
    partition: str | None = None
    delivery: Delivery = "exactly_once"
    compression: LogCompression = "lz4"

    def output_schema(self, step: str, inputs: tuple[pa.Schema, ...]) -> pa.Schema:
        """The columns of the input; see the base class."""
        schema = super().output_schema(step, inputs)
        check_parts(
            step,
            schema,
            ("id", self.id, _INTEGER_TYPES),
            ("key", self.key, ()),
            ("value", self.value, TEXT_TYPES),
            ("partition", self.partition, _INTEGER_TYPES),
        )
        if self.key is not None:
            check_key_type(self.key, schema.field(self.key).type)
        if self.value is None and not set(schema.names) - {self.partition}:
            raise GraphError(f"step {step!r}: no column is left for the value")
        return schema
