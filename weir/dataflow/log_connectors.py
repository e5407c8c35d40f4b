"""The replicated log as job authors write it. Inert: nothing is opened here."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import pyarrow as pa

from weir.dataflow.connectors import AnySource
from weir.dataflow.record_columns import check_bootstrap, check_parts, check_topic, sink_coding, value_paths
from weir.errors import GraphError
from weir.rows.nested_paths import GivenPath
from weir.rows.schemas import to_schema
from weir.specs.kafka import Delivery, OnTruncation
from weir.specs.kafka_values import ValueSpec
from weir.specs.log import LogCompression, LogPart, LogSinkSpec, LogSpec

#: Types that a column with a part of a record may have.
_PART_TYPES: dict[str, tuple[pa.DataType, ...]] = {
    "id": (pa.int64(),),
    "topic": (pa.string(), pa.large_string()),
    "partition": (pa.int32(), pa.int64()),
    "offset": (pa.int64(),),
    "timestamp": (pa.int64(),),
}


def LogSink(
    topic: str,
    *,
    bootstrap: str,
    id: str | None = None,  # the word of the log
    key: str | None = None,
    value: str | ValueSpec | None = None,
    partition: str | None = None,
    delivery: Delivery = "exactly_once",
    compression: LogCompression = "lz4",
) -> LogSinkSpec:
    """A sink that writes each row as a record of a topic of the replicated log (``docs/log.md``).

    With "exactly_once" the rows between two checkpoints wait in the checkpoint store, and go to the log when the
    checkpoint that covers them is complete: nobody sees them before. With "at_least_once" they go at once.

    Args:
        topic: its name; it must be there: ``weir log create``.
        bootstrap: addresses of brokers: ``"broker-1:7008,broker-2:7008"``; one that answers is enough.
        id: integer column with the records' ids, which readers can look for; else a row's event time, in ms since 1970.
        key: column that chooses the partition: rows of a key are in one, in their order. Without ``key`` and
            ``partition`` the batches of a subtask go to one partition after the other.
        value: column with the record, text or bytes. Or ``weir.Avro(...)`` or ``weir.Protobuf(...)``: a record of the
            columns. Else a JSON object of them.
        partition: integer column with the number of the partition, in place of ``key``.
        delivery: "exactly_once" or "at_least_once" (restarts send rows again).
        compression: "lz4", "zstd" or "none", of each batch as a whole.

    Raises:
        GraphError: a setting is wrong.
    """
    check_topic(topic)
    if delivery not in get_args(Delivery):
        raise GraphError(f"delivery is {delivery!r}; it is 'exactly_once' or 'at_least_once'")
    if compression not in get_args(LogCompression):
        raise GraphError(f"compression is {compression!r}; it is 'none', 'lz4' or 'zstd'")
    if key is not None and partition is not None:
        raise GraphError("key and partition are both given; each chooses the partition, so give one of them")
    coding = sink_coding(value)
    return LogSinkSpec(
        bootstrap=check_bootstrap(bootstrap),
        topic=topic,
        id=id,
        key=key,
        value=value if isinstance(value, str) else None,
        coding=coding,
        partition=partition,
        delivery=delivery,
        compression=compression,
    )


@dataclass(frozen=True, kw_only=True)
class LogSource(AnySource):
    """Records of a topic of the replicated log (``docs/log.md``), each once.

    Each partition is read in order by one subtask, and has a watermark of its own. Offsets are in checkpoints.

    Attributes:
        bootstrap: addresses of brokers: ``"broker-1:7008,broker-2:7008"``; one that answers is enough.
        topic: its name.
        value: "json" decodes one JSON object a record, as :class:`weir.JsonLines` does; ``weir.Avro(...)`` and
            ``weir.Protobuf(...)`` decode those; "raw" has the whole record in the one column of the schema that is not
            among ``parts``, as bytes or text.
        paths: where the values of a column are, as in :class:`weir.JsonLines`.
        parts: columns of the schema with something else than the value: ``{"number": "id", "at": "timestamp"}``; one
            of "id", "topic", "partition", "offset", "timestamp" (ms since 1970, by the leader's clock).
        start: where a start without a checkpoint begins: "earliest"; "latest"; a ``datetime`` with a time zone: the
            first record that was written from then on; or offsets: ``{0: 17}``, with the other partitions from the
            earliest on; a partition that is not there is an error.
        bounded: end where each partition ended when the job began; else the source never ends.
        on_truncation: what to do if retention has removed the record at which to go on: "fail", or go on at the
            partition's "earliest" or "latest" record.
    """

    bootstrap: str
    topic: str
    value: Literal["json", "raw"] | ValueSpec = "json"
    paths: Mapping[str, GivenPath] = field(default_factory=dict)
    parts: Mapping[str, LogPart] = field(default_factory=dict)
    start: Literal["earliest", "latest"] | dt.datetime | Mapping[int, int] = "earliest"
    bounded: bool = False
    on_truncation: OnTruncation = "fail"

    def to_spec(self) -> LogSpec:
        """The frozen description that the graph holds."""
        self._check()
        check_topic(self.topic)
        if self.on_truncation not in get_args(OnTruncation):
            raise GraphError(f"on_truncation is {self.on_truncation!r}; it is 'fail', 'earliest' or 'latest'")
        schema = to_schema(self.schema)
        parts = check_parts(schema, self.parts, _PART_TYPES, self.value)
        values = pa.schema([column for column in schema if column.name not in parts])
        settings: dict[str, Any] = {**self._settings(), "schema": schema}
        return LogSpec(
            factory=LogSpec,
            bootstrap=check_bootstrap(self.bootstrap),
            topic=self.topic,
            value=self.value if isinstance(self.value, str) else "coded",
            coding=None if isinstance(self.value, str) else self.value,
            paths=value_paths(values, self.value, self.paths),
            parts=tuple(parts.items()),
            start=self._checked_start(),
            bounded=self.bounded,
            on_truncation=self.on_truncation,
            **settings,
        )

    def _checked_start(self) -> Any:
        if isinstance(self.start, dt.datetime):
            if self.start.tzinfo is None:
                raise GraphError(f"start is {self.start}; give it a time zone: tzinfo=datetime.UTC")
            return int(self.start.timestamp() * 1000)
        if isinstance(self.start, Mapping):
            places = tuple(sorted(self.start.items()))
            if not all(isinstance(n, int) and n >= 0 for place in places for n in place):
                raise GraphError("start: offsets are given as {partition: offset}")
            return places
        if self.start not in ("earliest", "latest"):
            raise GraphError(
                f"start is {self.start!r}; it is 'earliest', 'latest', a datetime or a mapping of offsets"
            )
        return self.start
