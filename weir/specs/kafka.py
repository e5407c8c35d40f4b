"""Specs of the Kafka source and sink."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import pyarrow as pa

from weir.specs.sources import UserSourceSpec

ValueFormat = Literal["json", "raw"]
#: What a column of a record has that is not in its value.
RecordPart = Literal["key", "topic", "partition", "offset", "timestamp", "headers"]
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


class ClientProperties(Mapping[str, str]):
    """Settings of the client library. Passwords may be among them: plans and fingerprints show none of them."""

    def __init__(self, properties: Mapping[str, object] | None = None) -> None:
        self._properties = {str(name): str(value) for name, value in (properties or {}).items()}

    def __getitem__(self, name: str) -> str:
        return self._properties[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._properties)

    def __len__(self) -> int:
        return len(self._properties)

    def __hash__(self) -> int:
        return hash(frozenset(self._properties.items()))

    def __repr__(self) -> str:
        return f"ClientProperties({', '.join(sorted(self._properties))})"


@dataclass(frozen=True)
class KafkaSpec(UserSourceSpec):
    """Records of Kafka topics; each partition is a split."""

    kind: ClassVar[str] = "kafka_source"
    runtime: ClassVar[str] = "weir.operators.kafka.reader:KafkaReader"
    bootstrap: str = ""
    topics: tuple[str, ...] = ()
    #: Instead of ``topics``: a regular expression of whole names.
    pattern: str = ""
    value: ValueFormat = "json"
    #: Of columns that lie in nested objects: column, and the keys that lead to its values.
    paths: tuple[tuple[str, tuple[str, ...]], ...] = ()
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
