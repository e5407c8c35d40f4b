"""Specs of the Kafka source and sink."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal

import pyarrow as pa
from typing_extensions import override

from weir.errors import GraphError
from weir.rows.nested_paths import Path
from weir.specs.kafka_properties import ClientProperties
from weir.specs.kafka_values import ValueSpec
from weir.specs.sinks import TEXT_TYPES, SinkSpec, check_parts
from weir.specs.sources import UserSourceSpec

ValueFormat = Literal["json", "raw", "coded"]
#: What a column of a record has that is not in its value.
RecordPart = Literal["key", "topic", "partition", "offset", "timestamp", "headers"]
Delivery = Literal["exactly_once", "at_least_once"]
OnTruncation = Literal["fail", "earliest", "latest"]
DISCOVER_MS = 30_000.0
HEADER_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
#: What a user may not set: positions are in checkpoints, and reader and sink depend on the others.
RESERVED_PROPERTIES = (
    "bootstrap.servers",
    "enable.auto.commit",
    "enable.auto.offset.store",
    "auto.offset.reset",
    "enable.partition.eof",
    "transactional.id",
    "enable.idempotence",
)


@dataclass(frozen=True)
class KafkaSpec(UserSourceSpec):
    """Records of Kafka topics; each partition is a split."""

    kind: ClassVar[str] = "kafka_source"
    runtime: ClassVar[str] = "weir.operators.kafka:create_kafka_reader"
    bootstrap: str = ""
    topics: tuple[str, ...] = ()
    #: Instead of ``topics``: a regular expression of whole names.
    pattern: str = ""
    value: ValueFormat = "json"
    #: What the values are, if they are "coded".
    coding: ValueSpec | None = None
    #: Of columns that lie in nested values: column, and what leads to its values.
    paths: tuple[tuple[str, Path], ...] = ()
    #: Column, and what it has instead of a part of the value.
    parts: tuple[tuple[str, RecordPart], ...] = ()
    #: ``earliest``, ``latest``, ms since 1970, or (topic, partition, offset) of some; others: earliest.
    start: Literal["earliest", "latest"] | int | tuple[tuple[str, int, int], ...] = "earliest"
    #: End where the partitions ended when they were first read to their ends.
    bounded: bool = False
    on_truncation: OnTruncation = "fail"
    properties: ClientProperties = field(default_factory=ClientProperties)
    #: Columns that are decoded; None: all.
    reads: tuple[str, ...] | None = None

    @property
    @override
    def ends(self) -> bool:
        return self.bounded


@dataclass(frozen=True)
class KafkaRangeSpec(KafkaSpec):
    """Records of one partition before an offset: no job has it, tasks of Spark do. ``start`` names this partition."""

    runtime: ClassVar[str] = "weir.operators.kafka:create_range_reader"
    stop: int = 0

    @classmethod
    def of(cls, spec: KafkaSpec, topic: str, number: int, first: int, stop: int) -> KafkaRangeSpec:
        """A range of a partition of a source; ``first``: negative for the earliest record that there is."""
        same = {each.name: getattr(spec, each.name) for each in fields(spec)}
        place: dict[str, Any] = {"topics": (topic,), "pattern": "", "start": ((topic, number, first),)}
        return cls(**{**same, **place, "bounded": True, "discover_ms": None, "stop": stop})


@dataclass(frozen=True)
class KafkaSinkSpec(SinkSpec):
    """Write each row as a record of a topic."""

    kind: ClassVar[str] = "kafka_sink"
    runtime: ClassVar[str] = "weir.operators.kafka:create_kafka_sink"
    bootstrap: str
    topic: str
    #: Column; None: records have no key.
    key: str | None = None
    #: Column with the whole value, text or bytes; None: an object of the other columns.
    value: str | None = None
    #: How the object is written; None: in JSON.
    coding: ValueSpec | None = None
    #: Whether the column of the key is a field of the object, too.
    key_in_value: bool = True
    headers: str | None = None
    partition: str | None = None
    delivery: Delivery = "exactly_once"
    transaction_timeout_ms: int = 60_000
    properties: ClientProperties = field(default_factory=ClientProperties)

    def output_schema(self, step: str, inputs: tuple[pa.Schema, ...]) -> pa.Schema:
        """The columns of the input; see the base class."""
        schema = super().output_schema(step, inputs)
        check_parts(
            step,
            schema,
            ("key", self.key, ()),
            ("value", self.value, TEXT_TYPES),
            ("headers", self.headers, (HEADER_TYPE,)),
            ("partition", self.partition, (pa.int32(), pa.int64())),
        )
        apart = {self.headers, self.partition} | (set() if self.key_in_value else {self.key})
        if self.value is None and not set(schema.names) - apart:
            raise GraphError(f"step {step!r}: no column is left for the value")
        return schema
