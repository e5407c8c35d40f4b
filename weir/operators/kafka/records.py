"""The way from records of a partition to a batch: values by the decoder of JSON lines or others; parts as columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from weir.kernels.bytes import PADDING_BYTES
from weir.operators.sources.json.json_decode import JsonDecoder
from weir.operators.sources.json.json_records import NO_VALUE, decode_records
from weir.operators.sources.user.record_rows import BadRecord, good_rows, text_column
from weir.operators.sources.user.record_values import ValueDecoders
from weir.specs.kafka import KafkaSpec, RecordPart

#: ``confluent_kafka.Message``; its methods are all that is used of it.
Message = Any


class RecordDecoder(ValueDecoders[RecordPart]):
    """Decodes records of Kafka for one source."""

    def __init__(self, spec: KafkaSpec, records_max: int, who: str = "") -> None:
        parts = dict(spec.parts)
        #: A record without a value says that its key is gone: a row, where the rest of it may be null.
        self._takes_tombstones = "key" in parts.values() and all(
            field.nullable for field in spec.schema if field.name not in parts
        )
        super().__init__(spec, spec.parts, records_max, who, takes_nulls=self._takes_tombstones)

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
