"""Blocks of RocksDB's table files: their checksums, compressions and entries. Pure.

Written from RocksDB's description of its block-based format, as is :mod:`weir.state.stores.rocksdb_tables`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa
import xxhash

from weir.errors import StateError

#: Behind a block: its compression (1) and checksum (4).
TRAILER_BYTES = 5
_PRIME = 0x6B9083D9
_MASK = 0xFFFF_FFFF
_PLAIN = 0
#: By the number of a compression: codec of Arrow.
_CODECS = {1: "snappy", 4: "lz4_raw", 7: "zstd"}
_SNAPPY = 1
#: Of the last word of a data block: there is a hash index before it.
HASH_INDEX = 1 << 31
#: In the lowest byte of the number behind its key: the entry is a value; all others delete.
PUT = 1
#: Of memory, about: two texts and a number, and where they are listed.
OBJECTS_BYTES = 128


class UnknownTableError(StateError):
    """The table has a form that this reader does not know."""


@dataclass(frozen=True, slots=True)
class Handle:
    """Where a block is; ``size_bytes`` without what is behind it."""

    offset: int
    size_bytes: int


@dataclass(slots=True)
class DataBlock:
    """Entries in order, those of a key with the newest first; ``numbers``: sequence number and kind, as stored."""

    keys: list[bytes] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    values: list[bytes] = field(default_factory=list)
    #: Of memory, about.
    size_bytes: int = 0

    def find(self, key: bytes) -> tuple[int, bytes] | None:
        """Number and value of the newest entry of a key."""
        at = bisect_left(self.keys, key)
        return (self.numbers[at], self.values[at]) if at < len(self.keys) and self.keys[at] == key else None


def data_block(raw: bytes, handle: Handle, context: int) -> DataBlock:
    """Entries of a data block, from its bytes and the five behind them.

    Raises:
        UnknownTableError: it is compressed otherwise than Weir does.
        StateError: it is damaged.
    """
    found = DataBlock()
    keys, numbers, values = found.keys, found.numbers, found.values
    content = content_of(raw, handle.offset, context)
    for key, value in entries_of(content):
        keys.append(key[:-8])
        numbers.append(int.from_bytes(key[-8:], "little"))
        values.append(value)
    found.size_bytes = len(content) + OBJECTS_BYTES * len(keys)
    return found


def content_of(raw: bytes, offset: int, context: int) -> bytes:
    """A block without what is behind it, decompressed."""
    data, kind = raw[:-TRAILER_BYTES], raw[-TRAILER_BYTES]
    checksum = (xxhash.xxh3_64_intdigest(data) & _MASK) ^ (kind * _PRIME & _MASK)
    if context:
        checksum += context ^ ((offset & _MASK) + (offset >> 32) & _MASK)
    if checksum & _MASK != int.from_bytes(raw[-4:], "little"):
        raise StateError("a block of a table has another checksum than it had, so it is damaged")
    if kind == _PLAIN:
        return data
    if kind not in _CODECS:
        raise UnknownTableError(f"a block of a table has compression {kind}")
    size_bytes, start = number_at(data, 0)
    packed = data if kind == _SNAPPY else data[start:]
    try:
        content: bytes = pa.Codec(_CODECS[kind]).decompress(packed, size_bytes, asbytes=True)
    except (pa.ArrowException, OSError) as error:
        raise StateError(f"a block of a table cannot be decompressed ({error}), so it is damaged") from error
    return content


def number_at(data: bytes, at: int) -> tuple[int, int]:
    """Seven bits in each byte, the lowest first; and where the next thing begins."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def end_of_entries(block: bytes) -> int:
    """Where the places of entries begin; below 0: the block is damaged."""
    word = int.from_bytes(block[-4:], "little")
    end = len(block) - 4
    if word & HASH_INDEX:
        end -= 2 + int.from_bytes(block[end - 2 : end], "little")
    return end - 4 * (word & ~HASH_INDEX)


def entries_of(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Keys, of which each has so many bytes of the one before, and values."""
    at, end, key = 0, end_of_entries(block), b""
    if end < 0:
        raise StateError("a block of a table has no room for what it says it has, so it is damaged")
    while at < end:
        # Nearly all of these numbers are of one byte.
        shared, unshared, size_bytes = block[at], block[at + 1], block[at + 2]
        if (shared | unshared | size_bytes) < 0x80:
            at += 3
        else:
            shared, at = number_at(block, at)
            unshared, at = number_at(block, at)
            size_bytes, at = number_at(block, at)
        stop = at + unshared
        key = key[:shared] + block[at:stop]
        at = stop + size_bytes
        yield key, block[stop:at]
