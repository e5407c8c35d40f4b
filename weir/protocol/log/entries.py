"""Bytes of the replicated log, version 1: batches, as producers make them, in entries, as leaders number them.

A batch is a unit that brokers never take apart: a header of 52 bytes and a body. An entry is an envelope of 32 bytes,
which has the offset and the epoch that the leader gave, and the batch. Entries have the same bytes on the wire between
brokers, in segments on disk, and on their way to readers. The CRC32C of the batch is made by the producer and checked
by everybody after it (``next_anchors.md`` 2: "CRC32C covers what the broker does not change").

All numbers are little endian::

    envelope   batch_bytes u32, epoch u32, offset u64, append_ms u64, batch_crc u32, envelope_crc u32
    header     magic u16, version u8, flags u8, count u32, first_id i64, last_id i64, producer_id u64,
               producer_epoch u32, sequence u64, body_bytes u32, raw_bytes u32
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

import google_crc32c

from weir.errors import WeirError

ENVELOPE = struct.Struct("<IIQQII")
ENVELOPE_BYTES = ENVELOPE.size
_ENVELOPE_BODY = struct.Struct("<IIQQI")
_CRC = struct.Struct("<I")
HEADER = struct.Struct("<HBBIqqQIQII")
HEADER_BYTES = HEADER.size
MAGIC = 0x4C57
VERSION = 1
#: A batch, header included, has at most so many bytes; a record must fit.
BATCH_BYTES_MAX = 8 << 20
#: What each record adds to a body beside its bytes: an id and a length.
RECORD_OVERHEAD_BYTES = 12

#: Of ``flags``: how the body is compressed.
COMPRESSION_MASK = 0x0F
COMPRESSIONS = ("none", "lz4", "zstd")
#: Of ``flags``: no record of a user's; takes one offset.
CONTROL = 0x10
#: Of ``flags``: a sequence before this one may be absent, since its producer does not wait until all is safe.
MAY_HAVE_GAPS = 0x20

#: ``producer_id`` of the entry with which an epoch begins.
EPOCH_START_PRODUCER = 0
#: Of a producer: four bytes of a header.
PRODUCER_EPOCH_MAX = (1 << 32) - 1

#: CRC32C of some bytes.
checksum = google_crc32c.value
#: CRC32C of bytes whose first part had this one.
extend_checksum = google_crc32c.extend


class DamagedEntryError(WeirError):
    """Bytes are no entry, or not the one that was written; the message says what differs."""


class Header(NamedTuple):
    """What a batch says of itself; ids are the least and the greatest of its records."""

    flags: int
    record_count: int
    first_id: int
    last_id: int
    producer_id: int
    producer_epoch: int
    sequence: int
    body_bytes: int
    raw_bytes: int

    @property
    def is_control(self) -> bool:
        """Return whether it has no record of a user's."""
        return bool(self.flags & CONTROL)

    @property
    def may_have_gaps(self) -> bool:
        """Return whether sequences before this one may be absent."""
        return bool(self.flags & MAY_HAVE_GAPS)

    @property
    def compression(self) -> str:
        """How the body is compressed: one of ``COMPRESSIONS``."""
        return COMPRESSIONS[self.flags & COMPRESSION_MASK]


class Envelope(NamedTuple):
    """What the leader says of a batch."""

    batch_bytes: int
    epoch: int
    offset: int
    append_ms: int
    batch_crc: int

    @property
    def entry_bytes(self) -> int:
        """Length of the whole entry."""
        return ENVELOPE_BYTES + self.batch_bytes


class Entry(NamedTuple):
    """Batch in the log, numbered."""

    envelope: Envelope
    header: Header
    #: Where the entry begins, in the bytes that were read.
    position: int

    @property
    def end_offset(self) -> int:
        """Offset behind its last record."""
        return self.envelope.offset + self.header.record_count

    @property
    def end_position(self) -> int:
        """Where the next entry begins."""
        return self.position + self.envelope.entry_bytes


def header_bytes(header: Header) -> bytes:
    """Write the header of a batch; the producer does it."""
    return HEADER.pack(MAGIC, VERSION, *header)


def read_header(batch: bytes, position: int = 0) -> Header:
    """Read the header of a batch.

    Raises:
        DamagedEntryError: it is none, or none of this version.
    """
    if len(batch) - position < HEADER_BYTES:
        raise DamagedEntryError(
            f"a batch has {HEADER_BYTES} bytes at least, this one {len(batch) - position}"
        )
    magic, version, *fields = HEADER.unpack_from(batch, position)
    header = Header(*fields)
    if magic != MAGIC:
        raise DamagedEntryError(f"these bytes are no batch: they begin with {magic:#x} instead of {MAGIC:#x}")
    if version != VERSION:
        raise DamagedEntryError(
            f"batches of version {version} are not known here: run the same Weir everywhere"
        )
    if not header.record_count or (header.flags & COMPRESSION_MASK) >= len(COMPRESSIONS):
        raise DamagedEntryError(
            f"a batch of {header.record_count} records with flags {header.flags:#x} is not possible"
        )
    return header


def check_batch(header: Header, batch_bytes: int) -> None:
    """Refuse a batch of records whose header promises what its bytes cannot hold, such as 4 GiB of records.

    Called by the leader, before it takes a batch, and by readers, before they make room for it.

    Raises:
        DamagedEntryError: it is a control batch, which no producer sends, or its sizes do not fit each other.
    """
    if header.is_control:
        raise DamagedEntryError("a control batch has no records: only leaders write it")
    if header.body_bytes != batch_bytes - HEADER_BYTES:
        raise DamagedEntryError(
            f"a batch with a body of {header.body_bytes} bytes has {batch_bytes - HEADER_BYTES}"
        )
    is_packed = header.flags & COMPRESSION_MASK
    if header.raw_bytes > BATCH_BYTES_MAX or not (is_packed or header.raw_bytes == header.body_bytes):
        raise DamagedEntryError(
            f"a body of {header.body_bytes} bytes cannot be one of {header.raw_bytes}: {BATCH_BYTES_MAX} are possible"
        )
    if header.record_count * RECORD_OVERHEAD_BYTES > header.raw_bytes:
        raise DamagedEntryError(f"{header.record_count} records are not possible in {header.raw_bytes} bytes")


def envelope_bytes(batch_bytes: int, epoch: int, offset: int, append_ms: int, batch_crc: int) -> bytes:
    """Write an envelope; the leader does it."""
    body = _ENVELOPE_BODY.pack(batch_bytes, epoch, offset, append_ms, batch_crc)
    return body + _CRC.pack(checksum(body))


def read_envelope(buffer: bytes, position: int = 0) -> Envelope:
    """Read an envelope.

    Raises:
        DamagedEntryError: its checksum does not hold.
    """
    *fields, crc = ENVELOPE.unpack_from(buffer, position)
    if checksum(bytes(buffer[position : position + ENVELOPE_BYTES - 4])) != crc:
        raise DamagedEntryError(f"the envelope at byte {position} has another checksum than was written")
    return Envelope(*fields)


def control_batch(producer_id: int, producer_epoch: int) -> bytes:
    """Make a batch without records: a leader begins its epoch with one, and notes with one who took a producer's id."""
    return header_bytes(Header(CONTROL, 1, 0, 0, producer_id, producer_epoch, 0, 0, 0))


def entries_in(buffer: bytes, position: int = 0) -> Iterator[Entry]:
    """Yield the entries of bytes that begin with one and end with one, and check each of them.

    Raises:
        DamagedEntryError: a checksum does not hold, or an entry is cut short; those before it have been yielded.
    """
    size = len(buffer)
    while position < size:
        if size - position < ENVELOPE_BYTES + HEADER_BYTES:
            raise DamagedEntryError(f"the entry at byte {position} is cut short")
        envelope = read_envelope(buffer, position)
        start, stop = position + ENVELOPE_BYTES, position + envelope.entry_bytes
        if stop > size:
            raise DamagedEntryError(f"the entry at byte {position} is cut short")
        if checksum(bytes(buffer[start:stop])) != envelope.batch_crc:
            raise DamagedEntryError(
                f"the batch at offset {envelope.offset} (byte {position}) has another checksum than was written"
            )
        yield Entry(envelope, read_header(buffer, start), position)
        position = stop
