"""The way from records of a partition to a batch: values by the decoder of JSON lines or others; parts as columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from weir.kernels.bytes import PADDING_BYTES
from weir.operators.sources.json.json_decode import JsonDecoder
from weir.operators.sources.json.json_records import NO_VALUE, decode_records
from weir.operators.sources.user.record_rows import BadRecord, good_rows, text_column
from weir.specs.kafka import KafkaSpec, RecordPart
from weir.specs.sources import LINE_BYTES_MAX

if TYPE_CHECKING:
    from weir.operators.kafka.coded_values import CodedValues

#: ``confluent_kafka.Message``; its methods are all that is used of it.
Message = Any


class RecordDecoder:
    """Decodes records for one source. Not thread-safe: the decoder of values keeps scratch arrays.

    Args:
        spec: of the source; columns that nobody reads are not decoded.
        records_max: that one call gets at most.
        who: the step, for messages.

    Raises:
        InputError: the schema of values in Avro or Protobuf cannot be used.
    """

    def __init__(self, spec: KafkaSpec, records_max: int, who: str = "") -> None:
        self._schema = spec.schema_read
        parts = dict(spec.parts)
        self._parts = [(field, parts[field.name]) for field in self._schema if field.name in parts]
        self._fields = [field for field in self._schema if field.name not in parts]
        #: A record without a value says that its key is gone: a row, where the rest of it may be null.
        self._takes_tombstones = "key" in parts.values() and all(
            field.nullable for field in spec.schema if field.name not in parts
        )
        self._coded: CodedValues | None = None
        if spec.coding is not None and self._fields:
            # Loaded only where it is needed.
            from weir.operators.kafka.coding import decoder_of_values

            paths = dict(spec.paths)
            columns = [
                (field, tuple(map(str, paths.get(field.name, (field.name,))))) for field in self._fields
            ]
            self._coded = decoder_of_values(spec.coding, columns, who, takes_nulls=self._takes_tombstones)
        self._json: JsonDecoder | None = None
        if spec.value == "json" and self._fields:
            names = {field.name for field in self._fields}
            self._json = JsonDecoder(
                pa.schema(self._fields),
                [name for name in names if name == spec.event_time_column],
                LINE_BYTES_MAX,
                lines_max=records_max,
                paths={name: path for name, path in spec.paths if name in names},
            )

    def decode(self, records: Sequence[Message]) -> tuple[pa.RecordBatch, list[BadRecord]]:
        """The good records as rows, in their order, and the others.

        Args:
            records: of one partition, in order; at least one and at most ``records_max``.
        """
        bad: dict[int, str] = {}
        columns = {field.name: _part_column(records, field, part, bad) for field, part in self._parts}
        rows = np.arange(len(records))
        values: pa.RecordBatch | None = None
        if self._json is not None:
            values, rows = _json_values(self._json, records, bad, b"{}" if self._takes_tombstones else b"")
        elif self._coded is not None:
            values, rows = self._coded.decode([record.value() for record in records], bad)
        elif self._fields:
            (field,) = self._fields
            columns[field.name] = _column([record.value() for record in records], field, bad, NO_VALUE)
        batch = good_rows(self._schema, columns, values, rows, bad, len(records))
        letters = [BadRecord(n, bad[n], records[n].value() or b"") for n in sorted(bad)]
        return batch, letters


def _json_values(
    decoder: JsonDecoder, records: Sequence[Message], bad: dict[int, str], absent: bytes
) -> tuple[pa.RecordBatch, np.ndarray]:
    """Decode values, one line each; what is none is noted in ``bad``; ``absent`` stands for one that is not there.

    Returns:
        The rows, and the number of each one's record; int64, shape (rows,).
    """
    texts = [absent if (value := record.value()) is None else value for record in records]
    data = bytearray(b"\n").join(texts)
    if data.count(b"\n") >= len(texts):
        # White space between tokens, and as wrong within texts as the newline was.
        texts = [text.replace(b"\n", b"\t") for text in texts]
        data = bytearray(b"\n").join(texts)
    data += b"\n" + bytes(PADDING_BYTES)
    buffer = np.frombuffer(data, dtype=np.uint8)
    starts = np.zeros(len(texts) + 1, dtype=np.int64)
    np.cumsum([len(text) + 1 for text in texts], out=starts[1:])
    return decode_records(decoder, buffer, starts, bad)


def _part_column(
    records: Sequence[Message], field: pa.Field, part: RecordPart, bad: dict[int, str]
) -> pa.Array:
    """A column of what is not in the values, for all records; what is of no use is null, and noted in ``bad``."""
    values: list[Any]
    if part == "key":
        return _column([record.key() for record in records], field, bad, "the record has no key")
    if part == "topic":
        values = [record.topic() for record in records]
    elif part == "partition":
        values = [record.partition() for record in records]
    elif part == "offset":
        values = [record.offset() for record in records]
    elif part == "timestamp":
        # Kafka says -1 of one that a producer has left out.
        values = [ms if (ms := record.timestamp()[1]) >= 0 else None for record in records]
        _note_absent(values, field, bad, "the record has no timestamp")
    else:
        values = [_headers(number, record, bad) for number, record in enumerate(records)]
    return pa.array(values, type=field.type)


def _note_absent(values: Sequence[Any], field: pa.Field, bad: dict[int, str], absent: str) -> None:
    if not field.nullable and None in values:
        for number, value in enumerate(values):
            if value is None:
                bad.setdefault(number, f"{absent}, and field {field.name} may not be null")


def _headers(number: int, record: Message, bad: dict[int, str]) -> list[dict[str, Any]] | None:
    try:
        return [{"key": key, "value": value} for key, value in record.headers() or ()]
    except (SystemError, UnicodeDecodeError):
        # The client makes text of the names, and fails so where one is none.
        bad.setdefault(number, "the name of a header is not UTF-8")
        return None


def _column(values: list[bytes | None], field: pa.Field, bad: dict[int, str], absent: str) -> pa.Array:
    """Bytes as they are, or as text that must be UTF-8."""
    _note_absent(values, field, bad, absent)
    return text_column(pa.array(values, type=pa.binary()), field, bad)
