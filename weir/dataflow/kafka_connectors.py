"""Kafka as job authors write it. Inert: nothing is opened here, and the client library is not loaded."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import pyarrow as pa

from weir.dataflow.connectors import AnySource, check_discover_ms
from weir.dataflow.record_columns import check_bootstrap, check_parts, check_topic, sink_coding, value_paths
from weir.errors import GraphError
from weir.rows.nested_paths import GivenPath
from weir.rows.schemas import to_schema
from weir.specs.kafka import (
    DISCOVER_MS,
    HEADER_TYPE,
    RESERVED_PROPERTIES,
    Delivery,
    KafkaSinkSpec,
    KafkaSpec,
    OnTruncation,
    RecordPart,
)
from weir.specs.kafka_properties import ClientProperties
from weir.specs.kafka_values import ValueSpec
from weir.spelling import did_you_mean

#: Types that a column with a part of a record may have.
_PART_TYPES: dict[str, tuple[pa.DataType, ...]] = {
    "key": (pa.string(), pa.large_string(), pa.binary()),
    "topic": (pa.string(), pa.large_string()),
    "partition": (pa.int32(), pa.int64()),
    "offset": (pa.int64(),),
    "timestamp": (pa.int64(),),
    "headers": (HEADER_TYPE,),
}


def KafkaSink(
    topic: str,
    *,
    bootstrap: str,
    key: str | None = None,
    value: str | ValueSpec | None = None,
    key_in_value: bool = True,
    headers: str | None = None,
    partition: str | None = None,
    delivery: Delivery = "exactly_once",
    transaction_timeout_ms: int = 60_000,
    properties: Mapping[str, object] | None = None,
) -> KafkaSinkSpec:
    """A sink that writes each row as a record of a topic. Needs ``pip install 'weir[kafka]'``.

    With "exactly_once" records are in transactions: readers with ``isolation.level=read_committed`` see them when the
    checkpoint that covers them is complete. The rows of open transactions are in the checkpoint store, too, so that
    a transaction that the brokers have given up is written again.

    Args:
        topic: its name; it must be there, or the brokers must make topics.
        bootstrap: addresses of brokers: ``"broker-1:9092,broker-2:9092"``.
        key: column with the key; records without a key are spread over the partitions. As with Kafka's own client the
            key's bytes (of a number: its digits) choose the partition.
        value: column with the value, text or bytes; null makes a tombstone. Or ``weir.Avro(...)`` or
            ``weir.Protobuf(...)``: a record of the columns. Else a JSON object of them.
        key_in_value: whether the key's column is in that, too.
        headers: column with the headers, a list of ``{"key": text, "value": bytes}``.
        partition: integer column with the partition; null leaves the choice to the key.
        delivery: "exactly_once" or "at_least_once" (idempotent producers; restarts send rows again).
        transaction_timeout_ms: after so long the brokers abort a transaction; more than checkpoints take, and at most
            ``transaction.max.timeout.ms`` of the brokers.
        properties: of librdkafka.

    Raises:
        GraphError: a setting is wrong.
    """
    check_topic(topic)
    if delivery not in get_args(Delivery):
        raise GraphError(f"delivery is {delivery!r}; it is 'exactly_once' or 'at_least_once'")
    if not isinstance(transaction_timeout_ms, int) or transaction_timeout_ms < 1000:
        raise GraphError(f"transaction_timeout_ms is {transaction_timeout_ms!r}; it must be at least 1000")
    coding = sink_coding(value)
    return KafkaSinkSpec(
        bootstrap=check_bootstrap(bootstrap),
        topic=topic,
        key=key,
        value=value if isinstance(value, str) else None,
        coding=coding,
        key_in_value=key_in_value,
        headers=headers,
        partition=partition,
        delivery=delivery,
        transaction_timeout_ms=transaction_timeout_ms,
        properties=check_properties(properties or {}),
    )


@dataclass(frozen=True, kw_only=True)
class Kafka(AnySource):
    """Records of Kafka topics, each once. Needs ``pip install 'weir[kafka]'``.

    Each partition is read in order by one subtask, and has a watermark of its own. Offsets are in checkpoints.

    Attributes:
        bootstrap: addresses of brokers: ``"broker-1:9092,broker-2:9092"``.
        topics: a name, or several.
        pattern: instead of ``topics``: a regular expression of whole names; topics that turn up later are read too.
        value: "json" decodes one JSON object a record, as :class:`weir.JsonLines` does; ``weir.Avro(...)`` and
            ``weir.Protobuf(...)`` decode those; "raw" has the whole value in the one column of the schema that is not
            among ``parts``, as bytes or text.
        paths: where the values of a column are, as in :class:`weir.JsonLines`.
        parts: columns of the schema with something else than the value: ``{"user": "key", "at": "timestamp"}``; one
            of "key", "topic", "partition", "offset", "timestamp" (ms since 1970), "headers".
        start: where a start without a checkpoint begins: "earliest"; "latest"; a ``datetime`` with a time zone: the
            first record from then on; or offsets: ``{"topic": {0: 17}}``, with the others from the earliest on; a
            partition that is not there is an error.
            Partitions that turn up later are read from their beginning.
        bounded: end where each partition ends, once it was read to there; else the source never ends.
        discover_ms: how often to look for new topics and partitions; None: never. A bounded source does not look.
        on_truncation: what to do if a partition does not have the offset at which to go on, because its records have
            expired or the topic was made anew: "fail", or go on at its "earliest" or "latest" record.
        properties: of librdkafka, such as ``{"sasl.password": os.environ["PASSWORD"]}``.
            With ``group.id`` offsets are committed for that group after each checkpoint, for tools that watch its lag.
            ``isolation.level`` is "read_committed" unless it is set.
    """

    bootstrap: str
    topics: str | Sequence[str] = ()
    pattern: str | None = None
    value: Literal["json", "raw"] | ValueSpec = "json"
    paths: Mapping[str, GivenPath] = field(default_factory=dict)
    parts: Mapping[str, RecordPart] = field(default_factory=dict)
    start: Literal["earliest", "latest"] | dt.datetime | Mapping[str, Mapping[int, int]] = "earliest"
    bounded: bool = False
    discover_ms: float | None = DISCOVER_MS
    on_truncation: OnTruncation = "fail"
    properties: Mapping[str, object] = field(default_factory=dict)

    def to_spec(self) -> KafkaSpec:
        """The frozen description that the graph holds."""
        self._check()
        schema = to_schema(self.schema)
        parts = check_parts(schema, self.parts, _PART_TYPES, self.value)
        topics, pattern = self._checked_topics()
        if self.on_truncation not in get_args(OnTruncation):
            raise GraphError(f"on_truncation is {self.on_truncation!r}; it is 'fail', 'earliest' or 'latest'")
        check_discover_ms(self.discover_ms)
        values = pa.schema([column for column in schema if column.name not in parts])
        paths = value_paths(values, self.value, self.paths)
        settings: dict[str, Any] = {**self._settings(), "schema": schema}
        return KafkaSpec(
            factory=KafkaSpec,
            bootstrap=check_bootstrap(self.bootstrap),
            topics=topics,
            pattern=pattern,
            value=self.value if isinstance(self.value, str) else "coded",
            coding=None if isinstance(self.value, str) else self.value,
            paths=paths,
            parts=tuple(parts.items()),
            start=self._checked_start(),
            bounded=self.bounded,
            discover_ms=None if self.bounded else self.discover_ms,
            on_truncation=self.on_truncation,
            properties=check_properties(self.properties),
            **settings,
        )

    def _checked_topics(self) -> tuple[tuple[str, ...], str]:
        topics = (self.topics,) if isinstance(self.topics, str) else tuple(self.topics)
        if bool(topics) == (self.pattern is not None):
            raise GraphError("give either topics or a pattern of their names")
        if not all(isinstance(name, str) and name for name in topics) or len(set(topics)) < len(topics):
            raise GraphError(f"topics is {self.topics!r}; give different names")
        if self.pattern is not None:
            try:
                re.compile(self.pattern)
            except re.error as error:
                raise GraphError(f"pattern {self.pattern!r} is no regular expression: {error}") from None
        return tuple(sorted(topics)), self.pattern or ""

    def _checked_start(self) -> Any:
        if isinstance(self.start, dt.datetime):
            if self.start.tzinfo is None:
                raise GraphError(f"start is {self.start}; give it a time zone: tzinfo=datetime.UTC")
            return int(self.start.timestamp() * 1000)
        if isinstance(self.start, Mapping):
            return self._checked_offsets(self.start)
        if self.start not in ("earliest", "latest"):
            raise GraphError(
                f"start is {self.start!r}; it is 'earliest', 'latest', a datetime or a mapping of offsets"
            )
        return self.start

    def _checked_offsets(self, start: Mapping[str, Any]) -> tuple[tuple[str, int, int], ...]:
        if not all(isinstance(offsets, Mapping) for offsets in start.values()):
            raise GraphError('start: offsets are given as {"topic": {partition: offset}}')
        places = [
            (topic, number, offset)
            for topic, by_number in start.items()
            for number, offset in by_number.items()
        ]
        if not all(isinstance(n, int) and n >= 0 for place in places for n in place[1:]):
            raise GraphError('start: offsets are given as {"topic": {partition: offset}}')
        topics, pattern = self._checked_topics()
        for topic in start:
            if topic not in topics and not (pattern and re.fullmatch(pattern, topic)):
                raise GraphError(
                    f"start: topic {topic!r} is not read"
                    + (f"; the pattern is {pattern!r}" if pattern else did_you_mean(str(topic), topics))
                )
        return tuple(sorted(places))


def check_properties(properties: Mapping[str, object]) -> ClientProperties:
    """Settings of the client.

    Raises:
        GraphError: one is not the user's to set.
    """
    if not isinstance(properties, Mapping):
        raise GraphError(
            f"properties is {type(properties).__name__}; give a mapping of librdkafka's settings, such as "
            '{"security.protocol": "SSL"}'
        )
    for name in properties:
        if name in RESERVED_PROPERTIES:
            raise GraphError(f"properties: {name} is set by Weir; take it out")
    return ClientProperties(properties)
