"""Batches of the log that wait for their checkpoint: numbered, in the order in which they are sent.

They are rows of a row log (``weir.operators.sinks.row_logs``), one for each batch, so that whoever sends them, at
whatever time and with whatever version of Weir, sends the same bytes under the same numbers. That is what lets the
brokers know a batch again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyarrow import ipc

from weir.errors import InputError, WireLimitError
from weir.log.batches import Body, packed_body
from weir.operators.sinks.places import Place
from weir.protocol.log.entries import RECORD_OVERHEAD_BYTES, checksum

SCHEMA = pa.schema(
    [
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("sequence", pa.int64(), nullable=False),
        pa.field("flags", pa.int32(), nullable=False),
        pa.field("record_count", pa.int64(), nullable=False),
        pa.field("first_id", pa.int64(), nullable=False),
        pa.field("last_id", pa.int64(), nullable=False),
        pa.field("raw_bytes", pa.int64(), nullable=False),
        pa.field("content", pa.large_binary(), nullable=False),
        # Of the content, CRC32C.
        pa.field("crc", pa.int64(), nullable=False),
    ]
)
#: In the metadata of a row log's schema.
_PRODUCER = b"producer_id"
#: Of a batch, before it is compressed.
_BATCH_BYTES = 1 << 20


class HeldBatch(NamedTuple):
    """A batch, and where it goes."""

    partition: int
    sequence: int
    body: Body


@dataclass
class _Open:
    """Records of one partition that are in no batch yet."""

    ids: list[np.ndarray] = field(default_factory=list)
    values: list[pa.Array] = field(default_factory=list)
    size_bytes: int = 0


class BatchCutter:
    """Cuts records into batches and numbers them: those of a partition ascend by one, over all transactions.

    Args:
        producer_id: of all batches.
        compression: of each batch.
        who: the step, for messages.
    """

    def __init__(self, producer_id: int, compression: str, who: str) -> None:
        self._compression, self._who = compression, who
        self._schema = SCHEMA.with_metadata({_PRODUCER: str(producer_id)})
        self._open: dict[int, _Open] = {}
        #: Of the next batch, by partition.
        self._sequences: dict[int, int] = {}

    def add(self, partition: int, ids: np.ndarray, values: pa.Array) -> pa.RecordBatch | None:
        """Take records; returns batches that are full, in the form of ``SCHEMA``, or None.

        Args:
            partition: of the records.
            ids: int64, shape (records,).
            values: large_binary, without nulls.

        Raises:
            InputError: a record is too large.
        """
        records = self._open.setdefault(partition, _Open())
        records.ids.append(ids)
        records.values.append(values)
        records.size_bytes += values.nbytes + RECORD_OVERHEAD_BYTES * len(ids)
        if records.size_bytes < _BATCH_BYTES:
            return None
        return self._rows(list(self._cut(partition, is_whole=False)))

    def rest(self) -> pa.RecordBatch | None:
        """Return all that is left, in batches; None: nothing is."""
        return self._rows(
            [held for partition in sorted(self._open) for held in self._cut(partition, is_whole=True)]
        )

    def last_sequences(self) -> dict[str, int]:
        """Number of the last batch so far, by partition, as a text: snapshots have it."""
        return {str(partition): following - 1 for partition, following in sorted(self._sequences.items())}

    def _cut(self, partition: int, *, is_whole: bool) -> Iterator[HeldBatch]:
        records = self._open.pop(partition)
        ids = np.concatenate(records.ids)
        values = pa.concat_arrays(records.values)
        _, offsets, data = values.buffers()
        places = np.frombuffer(offsets, np.int64, len(values) + 1, 8 * values.offset)
        ends = places[1:] + RECORD_OVERHEAD_BYTES * np.arange(1, len(values) + 1)
        start, done = 0, int(places[0])
        while start < len(ids):
            stop = max(int(np.searchsorted(ends, done + _BATCH_BYTES, "right")), start + 1)
            if stop == len(ids) and not is_whole and ends[-1] - done < _BATCH_BYTES:
                self._open[partition] = _Open([ids[start:]], [values[start:]], int(ends[-1]) - done)
                return
            lengths = np.diff(places[start : stop + 1]).astype(np.uint32)
            blob = memoryview(b"" if data is None else data)[int(places[start]) : int(places[stop])]
            try:
                body = packed_body(np.ascontiguousarray(ids[start:stop]), lengths, [blob], self._compression)
            except WireLimitError as error:
                raise InputError(f"{self._who}: {error}") from error
            sequence = self._sequences.get(partition, 0)
            self._sequences[partition] = sequence + 1
            yield HeldBatch(partition, sequence, body)
            start, done = stop, int(ends[stop - 1])

    def _rows(self, batches: list[HeldBatch]) -> pa.RecordBatch | None:
        if not batches:
            return None
        rows = [
            (
                held.partition,
                held.sequence,
                held.body.flags,
                held.body.record_count,
                held.body.first_id,
                held.body.last_id,
                held.body.raw_bytes,
                held.body.content,
                checksum(held.body.content),
            )
            for held in batches
        ]
        columns = [
            pa.array(column, field.type)
            for column, field in zip(zip(*rows, strict=True), SCHEMA, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def read_held(place: Place, name: str, who: str) -> tuple[int, Iterator[HeldBatch]] | None:
    """Open a row log of batches; may raise OSError, as the iterator may.

    Args:
        place: where it is.
        name: of the file.
        who: the step, for messages.

    Returns:
        The producer whose batches these are, and the batches; None: there is no such file.

    Raises:
        InputError: it is something else, or not what was written; the iterator raises it, too.
    """
    try:
        stream = place.open(name)
    except FileNotFoundError:
        return None
    try:
        reader = ipc.open_stream(stream)
    except pa.ArrowInvalid as error:
        raise InputError(f"{who}: {place.at(name)} is not what was written: {error}") from error
    if reader.schema != SCHEMA or _PRODUCER not in (reader.schema.metadata or {}):
        raise InputError(
            f"{who}: {place.at(name)} has batches in another form; start with the version of Weir that made it"
        )
    return int(reader.schema.metadata[_PRODUCER]), _batches_in(stream, reader, f"{who}: {place.at(name)}")


def _batches_in(stream: Any, reader: Any, what: str) -> Iterator[HeldBatch]:
    with stream, reader:
        for rows in reader:
            for row in rows.to_pylist():
                content = row["content"]
                if checksum(content) != row["crc"]:
                    raise InputError(f"{what} is not what was written; start from another checkpoint")
                counts = row["record_count"], row["first_id"], row["last_id"], row["raw_bytes"]
                yield HeldBatch(row["partition"], row["sequence"], Body(row["flags"], *counts, content))
