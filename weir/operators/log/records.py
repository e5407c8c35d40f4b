"""Turns records of one partition into a batch: values by the decoder of JSON lines, or by others; parts as columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from weir.kernels.bytes import PADDING_BYTES
from weir.log import RecordBatch
from weir.operators.sources.json.json_decode import JsonDecoder
from weir.operators.sources.json.json_records import decode_records
from weir.operators.sources.user.record_rows import BadRecord, good_rows, text_column
from weir.operators.sources.user.record_values import ValueDecoders
from weir.specs.log import LogPart, LogSpec


@dataclass(frozen=True, slots=True)
class Records:
    """Records of one partition in columns, in order; all arrays have shape (records,).

    Attributes:
        offsets: int64; ascending, with gaps.
        ids: int64.
        times_ms: int64; when they were written.
        lengths: int64, bytes.
        data: of all records, one behind the other.
    """

    offsets: np.ndarray
    ids: np.ndarray
    times_ms: np.ndarray
    lengths: np.ndarray
    data: memoryview

    def __len__(self) -> int:
        return len(self.offsets)

    @staticmethod
    def of(batch: RecordBatch, from_offset: int) -> Records:
        """Return those of a batch from an offset on."""
        records = Records(
            batch.first_offset + np.arange(batch.count, dtype=np.int64),
            batch.ids,
            np.full(batch.count, batch.append_ms, dtype=np.int64),
            batch.lengths.astype(np.int64),
            memoryview(batch.blob),
        )
        return records.part(max(0, from_offset - batch.first_offset), batch.count)

    def part(self, start: int, stop: int) -> Records:
        """Records ``start`` to ``stop - 1``."""
        if start == 0 and stop >= len(self):
            return self
        first = int(self.lengths[:start].sum())
        data = self.data[first : first + int(self.lengths[start:stop].sum())]
        return Records(
            self.offsets[start:stop],
            self.ids[start:stop],
            self.times_ms[start:stop],
            self.lengths[start:stop],
            data,
        )


def joined(parts: Sequence[Records]) -> Records:
    """Records of several parts, at least one, in their order."""
    if len(parts) == 1:
        return parts[0]
    return Records(
        np.concatenate([part.offsets for part in parts]),
        np.concatenate([part.ids for part in parts]),
        np.concatenate([part.times_ms for part in parts]),
        np.concatenate([part.lengths for part in parts]),
        memoryview(b"".join(part.data for part in parts)),
    )


class RecordDecoder(ValueDecoders[LogPart]):
    """Decodes records of the log for one source."""

    def __init__(self, spec: LogSpec, records_max: int, who: str = "") -> None:
        super().__init__(spec, spec.parts, records_max, who)
        self._topic = spec.topic

    def decode(self, records: Records, partition: int) -> tuple[pa.RecordBatch, list[BadRecord]]:
        """The good records as rows, in their order, and the others.

        Args:
            records: of one partition, in order; at least one and at most ``records_max``.
            partition: its number.
        """
        bad: dict[int, str] = {}
        columns = {field.name: self._part_column(records, partition, part) for field, part in self._parts}
        columns = {
            name: column.cast(self._schema.field(name).type)
            if column.type != self._schema.field(name).type
            else column
            for name, column in columns.items()
        }
        rows = np.arange(len(records))
        values: pa.RecordBatch | None = None
        if self._json is not None:
            values, rows = _json_values(self._json, records, bad)
        elif self._coded is not None:
            values, rows = self._coded.decode(_binary(records).to_pylist(), bad)
        elif self._fields:
            (field,) = self._fields
            columns[field.name] = text_column(_binary(records), field, bad)
        batch = good_rows(self._schema, columns, values, rows, bad, len(records))
        texts = _binary(records) if bad else None
        letters = [] if texts is None else [BadRecord(n, bad[n], texts[n].as_py()) for n in sorted(bad)]
        return batch, letters

    def _part_column(self, records: Records, partition: int, part: LogPart) -> pa.Array:
        if part == "topic":
            return pa.array([self._topic]).take(pa.array(np.zeros(len(records), dtype=np.int64)))
        if part == "partition":
            return pa.array(np.full(len(records), partition, dtype=np.int64))
        numbers = {"id": records.ids, "offset": records.offsets, "timestamp": records.times_ms}
        return pa.array(numbers[part])


def _binary(records: Records) -> pa.Array:
    """The records as an array of bytes, where they lie."""
    places = np.zeros(len(records) + 1, dtype=np.int32)
    np.cumsum(records.lengths, out=places[1:])
    buffers = [None, pa.py_buffer(places), pa.py_buffer(records.data)]
    return pa.BinaryArray.from_buffers(pa.binary(), len(records), buffers)


def _json_values(
    decoder: JsonDecoder, records: Records, bad: dict[int, str]
) -> tuple[pa.RecordBatch, np.ndarray]:
    """Decode values, one line each; see :func:`decode_records`."""
    count = len(records)
    data = bytes(records.data)
    if b"\n" in data:
        # White space between tokens, and as wrong within texts as the newline was.
        data = data.replace(b"\n", b"\t")
    places = np.empty(count + 2, dtype=np.int32)
    places[0] = 0
    np.cumsum(records.lengths, out=places[1:-1])
    # The last one is what the decoder reads beyond the end.
    places[-1] = places[-2] + PADDING_BYTES
    buffers = [None, pa.py_buffer(places), pa.py_buffer(data + bytes(PADDING_BYTES))]
    lines = pa.BinaryArray.from_buffers(pa.binary(), count + 1, buffers)
    whole = pa.ListArray.from_arrays(pa.array([0, count + 1], pa.int32()), lines)
    buffer = np.frombuffer(pc.binary_join(whole, b"\n")[0].as_buffer(), dtype=np.uint8)
    starts = places[:-1].astype(np.int64) + np.arange(count + 1)
    return decode_records(decoder, buffer, starts, bad)
