"""Reads RocksDB's table files block by block, so that a table need not be on this disk as a whole. Pure.

A table is made of blocks (entries in key order, then an index of them, what is deleted as ranges, and properties) and a
footer that says where the first of these is found. Behind each block are its compression and its checksum. Written from
RocksDB's description of its block-based format, version 6, which ``rocksdb_settings`` chooses; others are refused.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable

import numpy as np
import xxhash

from weir.errors import StateError
from weir.state.stores.rocksdb_blocks import (
    HASH_INDEX,
    OBJECTS_BYTES,
    TRAILER_BYTES,
    Handle,
    UnknownTableError,
    content_of,
    end_of_entries,
    entries_of,
    number_at,
)

#: From the end of a file: checksum kind (1), format-specific part (40), format version (4), magic number (8).
FOOTER_BYTES = 53
_MAGIC = (0x88E241B785F4CFF7).to_bytes(8, "little")
_EXTENDED_MAGIC = b"\x3e\x00\x7a\x00"
_FORMAT_VERSION = 6
_XXH3 = 4
_MASK, _LONG_MASK = 0xFFFF_FFFF, 0xFFFF_FFFF_FFFF_FFFF
#: Of xxh3: the factor at the end in its early form, and that over the final one; the first two words of its secret.
_FACTOR = 0x165667B19E3779F9
_FACTORS = _FACTOR * pow(0x165667919E3779F9, -1, 1 << 64) & _LONG_MASK
_SECRET = 0xBE4BA423396CFEB8, 0x1CAD21F72C81017C
_META = {"index": b"rocksdb.index", "deleted": b"rocksdb.range_del", "properties": b"rocksdb.properties"}
_USER_KEYS, _DELTAS = b"rocksdb.index.key.is.user.key", b"rocksdb.index.value.is.delta.encoded"
_FILTER = b"fullfilter.rocksdb.BuiltinBloomFilter"
_FILTER_MARKS_BYTES, _LINE_BYTES, _PROBE_FACTOR = 5, 64, 0x9E3779B9
_DICTIONARY = b"rocksdb.compression_dict"
_NONE = np.empty(0, np.uint32)

#: Returns so many bytes of a file from an offset on.
ReadRange = Callable[[int, int], bytes]


class KeyFilter:
    """A Bloom filter over the keys of a table: a line of 64 bytes has all bits of a key.

    RocksDB hashes keys by an early form of xxh3, see :func:`_key_hash`. Of keys of other lengths nothing is said here.
    """

    def __init__(self, content: bytes) -> None:
        """``content``: of the filter's block.

        Raises:
            UnknownTableError: it is another filter.
        """
        marks = content[-_FILTER_MARKS_BYTES:]
        # Of lines of 64 bytes: the upper three bits are 0.
        if marks[:2] != b"\xff\x00" or len(marks) != _FILTER_MARKS_BYTES or not 0 < marks[2] < 32:
            raise UnknownTableError("the filter of a table has another form")
        self._lines = content[:-_FILTER_MARKS_BYTES]
        self._count, self._probes = len(self._lines) // _LINE_BYTES, marks[2]

    def __len__(self) -> int:
        """Bytes of memory."""
        return len(self._lines)

    def may_have(self, key: bytes) -> bool:
        """False: the table has no entry of this key."""
        digest = _key_hash(key)
        if digest is None or not self._count:
            return True
        line, rest = ((digest & _MASK) * self._count >> 32) * _LINE_BYTES, digest >> 32
        for _ in range(self._probes):
            bit = rest >> 23
            if not self._lines[line + (bit >> 3)] >> (bit & 7) & 1:
                return False
            rest = rest * _PROBE_FACTOR & _MASK
        return True


class DeletedRanges:
    """What was deleted as ranges, as one table says it: of each key it says nothing, or one thing."""

    def __init__(self, entries: Iterable[tuple[bytes, bytes]]) -> None:
        """``entries``: where a range begins, with the number of the entry behind it, and where it ends; in key order.

        Raises:
            UnknownTableError: ranges overlap. RocksDB cuts them where others begin or end.
        """
        self._starts: list[bytes] = []
        self._stops: list[bytes] = []
        self._numbers: list[int] = []
        for key, stop in entries:
            start = key[:-8]
            if self._starts and (start, stop) == (self._starts[-1], self._stops[-1]):
                # It was deleted before, too.
                continue
            if self._stops and start < self._stops[-1]:
                raise UnknownTableError("ranges that a table deletes overlap")
            self._starts.append(start)
            self._stops.append(stop)
            self._numbers.append(int.from_bytes(key[-8:], "little"))
        #: Of memory, about.
        self.size_bytes = sum(map(len, (*self._starts, *self._stops))) + OBJECTS_BYTES * len(self._starts)

    def __len__(self) -> int:
        return len(self._starts)

    def number_at(self, key: bytes) -> int:
        """Number of the newest entry that deletes a range with this key; -1: there is none."""
        at = bisect_right(self._starts, key) - 1
        return self._numbers[at] if at >= 0 and key < self._stops[at] else -1


class TableIndex:
    """What has to be known of a table before its data is read: where blocks are, and what is deleted as ranges.

    Made by :func:`read_index`. It never changes. A table has thousands of blocks: an entry is read when it is needed.
    """

    def __init__(
        self, block: bytes, deleted: DeletedRanges, context: int, keys: KeyFilter | None = None
    ) -> None:
        """``block``: an entry for each block: a key than which none of its keys is higher. ``context``: of checksums.

        ``keys``: a filter over all keys; None: there is none.

        Raises:
            UnknownTableError: the index has another form.
        """
        self.deleted, self.context = deleted, context
        self._block, self._filter = block, keys
        self.size_bytes = len(block) + deleted.size_bytes + (0 if keys is None else len(keys))
        end = end_of_entries(block)
        if end < 0 or int.from_bytes(block[-4:], "little") & HASH_INDEX:
            raise UnknownTableError("the index of a table has another form")
        #: Where entries begin, uint32: each begins anew.
        self._starts = np.frombuffer(block, "<u4", (len(block) - 4 - end) // 4, end) if end else _NONE

    def __len__(self) -> int:
        """How many blocks there are."""
        return len(self._starts)

    def block_of(self, key: bytes) -> int:
        """Position of the only block that may have the newest entry of a key; ``len(self)``: none has one."""
        return bisect_left(range(len(self)), key, key=self._key)

    def may_have(self, key: bytes) -> bool:
        """False: the table has no entry of this key; it may have deleted a range with it."""
        return self._filter is None or self._filter.may_have(key)

    def handle(self, at: int) -> Handle:
        """Where a block is."""
        offset, after = number_at(self._block, self._key_bounds(at)[1])
        return Handle(offset, number_at(self._block, after)[0])

    def _key(self, at: int) -> bytes:
        start, stop = self._key_bounds(at)
        return self._block[start:stop]

    def _key_bounds(self, at: int) -> tuple[int, int]:
        start = int(self._starts[at])
        if self._block[start]:
            raise UnknownTableError("an entry of the index of a table is a part of the one before")
        size_bytes, start = number_at(self._block, start + 1)
        return start, start + size_bytes


def read_index(size_bytes: int, read: ReadRange) -> TableIndex:
    """Read the footer of a table of so many bytes, and what it leads to.

    Raises:
        UnknownTableError: the table has another form.
        StateError: it is damaged.
    """
    if size_bytes < FOOTER_BYTES:
        raise StateError("a table is too short, so it is damaged")
    footer_at = size_bytes - FOOTER_BYTES
    footer = read(footer_at, FOOTER_BYTES)
    if footer[-8:] != _MAGIC:
        raise StateError("a table does not end as RocksDB's tables do, so it is damaged")
    version = int.from_bytes(footer[-12:-8], "little")
    if version != _FORMAT_VERSION or footer[0] != _XXH3 or footer[1:5] != _EXTENDED_MAGIC:
        raise UnknownTableError(f"a table has format version {version} and checksum kind {footer[0]}")
    context, meta_bytes = (int.from_bytes(footer[at : at + 4], "little") for at in (9, 13))
    meta_at = footer_at - TRAILER_BYTES - meta_bytes
    meta = dict(entries_of(_read_block(read, Handle(meta_at, meta_bytes), context)))
    if _META["index"] not in meta or _META["properties"] not in meta or _DICTIONARY in meta:
        raise UnknownTableError("a table names no index, or a dictionary")
    properties = dict(entries_of(_read_block(read, _handle(meta[_META["properties"]]), context)))
    if not (_flag(properties, _USER_KEYS) and _flag(properties, _DELTAS)):
        raise UnknownTableError("the index of a table has another form")
    block = _read_block(read, _handle(meta[_META["index"]]), context)
    place = meta.get(_META["deleted"])
    deleted = DeletedRanges(() if place is None else entries_of(_read_block(read, _handle(place), context)))
    place = meta.get(_FILTER)
    keys = None if place is None else KeyFilter(_read_block(read, _handle(place), context))
    return TableIndex(block, deleted, context, keys)


def _key_hash(key: bytes) -> int | None:
    """The early form of xxh3 of a key; None: its form for this length is not known here."""
    if 17 <= len(key) <= 128:
        digest = xxhash.xxh3_64_intdigest(key)
        # The final form differs in the last multiplication only: that is undone, and the other one done.
        digest = (digest ^ digest >> 32) * _FACTORS & _LONG_MASK
    elif 9 <= len(key) <= 16:
        low = int.from_bytes(key[:8], "little") ^ _SECRET[0]
        high = int.from_bytes(key[-8:], "little") ^ _SECRET[1]
        product = low * high
        digest = len(key) + low + high + (product & _LONG_MASK ^ product >> 64) & _LONG_MASK
        digest = (digest ^ digest >> 37) * _FACTOR & _LONG_MASK
    else:
        return None
    return digest ^ digest >> 32


def _read_block(read: ReadRange, handle: Handle, context: int) -> bytes:
    if handle.offset < 0:
        raise StateError("a table names a block before its beginning, so it is damaged")
    return content_of(read(handle.offset, handle.size_bytes + TRAILER_BYTES), handle.offset, context)


def _handle(data: bytes) -> Handle:
    offset, at = number_at(data, 0)
    return Handle(offset, number_at(data, at)[0])


def _flag(properties: dict[bytes, bytes], name: bytes) -> bool:
    return name in properties and number_at(properties[name], 0)[0] == 1
