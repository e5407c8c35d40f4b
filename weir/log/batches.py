"""Records in columns, as the body of a batch holds them: made and read by clients, never looked at by brokers.

A body is, before it is compressed as a whole: ids (int64 each), lengths (uint32 each), and the bytes of all records.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from weir.errors import WireLimitError
from weir.protocol.log.entries import (
    BATCH_BYTES_MAX,
    COMPRESSIONS,
    ENVELOPE_BYTES,
    HEADER_BYTES,
    RECORD_OVERHEAD_BYTES,
    DamagedEntryError,
    Entry,
    Header,
    check_batch,
)

_ID_BYTES = 8
_CODECS = {"lz4": "lz4_raw", "zstd": "zstd"}


class Record(NamedTuple):
    """Record as a reader gets it."""

    offset: int
    id: int
    data: bytes


class Body(NamedTuple):
    """What a batch holds, apart from who sends it."""

    flags: int
    record_count: int
    first_id: int
    last_id: int
    raw_bytes: int
    content: bytes

    def header(self, producer_id: int, producer_epoch: int, sequence: int, flags: int) -> Header:
        """Return the header of the batch, with these flags beside the body's."""
        return Header(
            self.flags | flags,
            self.record_count,
            self.first_id,
            self.last_id,
            producer_id,
            producer_epoch,
            sequence,
            len(self.content),
            self.raw_bytes,
        )


class RecordBatch:
    """Records of one batch in columns, as a reader gets them."""

    def __init__(self, first_offset: int, count: int, raw: bytes, append_ms: int = 0) -> None:
        """``raw``: the body, not compressed any more."""
        self.first_offset = first_offset
        self.count = count
        #: When the leader appended it, ms since the epoch by its clock.
        self.append_ms = append_ms
        #: Shape (count,).
        self.ids: npt.NDArray[np.int64] = np.frombuffer(raw, np.int64, count)
        #: In bytes; shape (count,).
        self.lengths: npt.NDArray[np.uint32] = np.frombuffer(raw, np.uint32, count, count * _ID_BYTES)
        #: Bytes of all records, one behind the other.
        self.blob = raw[count * RECORD_OVERHEAD_BYTES :]

    def records(self) -> Iterator[Record]:
        """Yield the records one by one."""
        blob, start = self.blob, 0
        offset = self.first_offset
        for record_id, length in zip(self.ids.tolist(), self.lengths.tolist(), strict=True):
            stop = start + length
            yield Record(offset, record_id, blob[start:stop])
            start, offset = stop, offset + 1


def body_of(ids: Sequence[int] | npt.NDArray[np.int64], buffers: Sequence[Any], compression: str) -> Body:
    """Make the body of a batch.

    Args:
        ids: one per record; they fit int64.
        buffers: bytes-like, one per record.
        compression: one of ``COMPRESSIONS``.

    Raises:
        WireLimitError: the batch would be larger than a batch may be.
    """
    lengths = np.fromiter(map(len, buffers), np.uint32, len(buffers))
    return packed_body(np.asarray(ids, np.int64), lengths, buffers, compression)


def packed_body(
    ids: npt.NDArray[np.int64], lengths: npt.NDArray[np.uint32], parts: Sequence[Any], compression: str
) -> Body:
    """Make the body of a batch from columns.

    Args:
        ids: shape (count,).
        lengths: in bytes; shape (count,).
        parts: bytes-like; one behind the other they are the bytes of all records.
        compression: one of ``COMPRESSIONS``.

    Raises:
        WireLimitError: the batch would be larger than a batch may be.
        TypeError: a part is not bytes-like, or its items are larger than a byte.
    """
    # Buffers of arrays are joined as they lie.
    raw = b"".join((ids.data, lengths.data, *parts))
    if len(raw) != int(lengths.sum(dtype=np.int64)) + len(ids) * RECORD_OVERHEAD_BYTES:
        raise TypeError("a record has more bytes than items; give bytes, as of array.tobytes()")
    if len(raw) + HEADER_BYTES > BATCH_BYTES_MAX:
        raise WireLimitError(
            f"a batch of {len(raw)} bytes is larger than a batch may be, {BATCH_BYTES_MAX}: a record must be smaller"
        )
    flags, content = 0, raw
    if compression in _CODECS:
        packed: bytes = pa.compress(raw, codec=_CODECS[compression], asbytes=True)
        # Random bytes grow; then they go as they are.
        if len(packed) < len(raw):
            flags, content = COMPRESSIONS.index(compression), packed
    return Body(flags, len(ids), int(ids.min()), int(ids.max()), len(raw), content)


def records_of(buffer: bytes, entry: Entry) -> RecordBatch:
    """Read the records of an entry that was checked; it is no control batch.

    Raises:
        DamagedEntryError: its producer has sent something else than records.
    """
    header, where = entry.header, f"the batch at offset {entry.envelope.offset}"
    check_batch(header, entry.envelope.batch_bytes)
    start = entry.position + ENVELOPE_BYTES + HEADER_BYTES
    raw = buffer[start : entry.end_position]
    if header.compression in _CODECS:
        try:
            raw = pa.decompress(
                raw, decompressed_size=header.raw_bytes, codec=_CODECS[header.compression], asbytes=True
            )
        except (pa.ArrowException, OSError) as error:
            raise DamagedEntryError(f"{where} cannot be decompressed: {error}") from error
    batch = RecordBatch(entry.envelope.offset, header.record_count, raw, entry.envelope.append_ms)
    if len(batch.blob) != int(batch.lengths.sum(dtype=np.int64)):
        raise DamagedEntryError(f"{where} has other bytes than its records are long")
    return batch
