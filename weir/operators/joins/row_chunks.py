"""Rows of a key that has many: those that came first lie in chunks of their own, which are written once.

The entry of such a key (``kept_rows``) has version 2: its number of chunks in bytes 9 to 12, then for each of them

==========  =============================================================================================
bytes       field
==========  =============================================================================================
4           its number, little endian
1           the side that all of its rows are of
4           how many rows
4           bytes of the rows
8           the last time that belongs to one of its rows; 2**63 - 1: all times do
8           when the first of them is due of which it is told that it has not matched; 2**63 - 1: none is
==========  =============================================================================================

and then the rows that came later. A chunk's store key is that of the entry with ``01`` and its number, 4 bytes big
endian, in the place of ``00``; its value is ``01``, the version, and its rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from weir.errors import StateError, StateMismatchError
from weir.operators.joins import join_kernels as kernels
from weir.state.tables.values.value_table import ValueTable

#: Rows that lie in an entry go to a chunk when they have so many bytes.
SEAL_BYTES = 32 * 1024
#: Of an entry without chunks, and with some.
PLAIN_VERSION, CHUNKED_VERSION = 1, 2
CHUNK_VERSION = 1
NEVER_MS = kernels.NEVER
_COUNT_AT = 9
_CHUNK_DTYPE = np.dtype(
    [("number", "<u4"), ("side", "u1"), ("rows", "<u4"), ("bytes", "<u4"), ("until", "<i8"), ("due", "<i8")]
)
_VERSION_BYTES = 1


@dataclass
class Chunk:
    """One chunk of a key, as its entry describes it."""

    number: int
    side: int
    rows: int
    bytes: int
    until: int
    due: int
    #: Where its rows begin in the block's data; -1: they are not loaded.
    start: int = -1


@dataclass
class ChunkedKey:
    """The chunks of a key, by number, and their value where it is loaded."""

    chunks: list[Chunk]
    loaded: dict[int, bytes] = field(default_factory=dict)
    #: Above all numbers in the block: a chunk that is deleted is not written in the same go.
    next_number: int = 0

    def __post_init__(self) -> None:
        self.next_number = self.chunks[-1].number + 1 if self.chunks else 0


def read_directory(entry: bytes) -> tuple[list[Chunk], int]:
    """The chunks of an entry of version 2, and where its rows begin.

    Raises:
        StateMismatchError: the entry is shorter than it says.
    """
    count = int.from_bytes(entry[_COUNT_AT : kernels.HEAD_BYTES], "little")
    stop = kernels.HEAD_BYTES + count * _CHUNK_DTYPE.itemsize
    if len(entry) < stop:
        raise StateMismatchError(f"an entry of a join has {len(entry)} bytes, too few for its {count} chunks")
    table = np.frombuffer(entry[kernels.HEAD_BYTES : stop], dtype=_CHUNK_DTYPE)
    return [Chunk(*row) for row in table.tolist()], stop


def with_directory(entry: bytes, chunks: list[Chunk]) -> bytes:
    """An entry of version 1 with chunks."""
    if not chunks:
        return entry
    rows = [(chunk.number, chunk.side, chunk.rows, chunk.bytes, chunk.until, chunk.due) for chunk in chunks]
    head = bytes([CHUNKED_VERSION]) + entry[1:_COUNT_AT] + len(chunks).to_bytes(4, "little")
    return head + np.array(rows, dtype=_CHUNK_DTYPE).tobytes() + entry[kernels.HEAD_BYTES :]


def chunk_key(entry_key: bytes, number: int) -> bytes:
    """The store key of a chunk, from that of its entry."""
    return entry_key[:-1] + b"\x01" + number.to_bytes(4, "big")


def rows_of_entry(entry: bytes, chunks: Mapping[int, bytes]) -> bytes:
    """Return all rows of an entry of any version, those of its chunks first, for whoever only reads.

    Args:
        entry: as stored.
        chunks: values of the chunks by number; others may be among them.

    Raises:
        KeyError: a chunk is not among them.
        StateMismatchError: the entry, or a chunk, is of another version.
    """
    if entry[0] == PLAIN_VERSION:
        return entry[kernels.HEAD_BYTES :]
    if entry[0] != CHUNKED_VERSION:
        raise StateMismatchError(
            f"rows of a join have format version {entry[0]}, this program reads {PLAIN_VERSION} and {CHUNKED_VERSION}"
        )
    listed, rows_at = read_directory(entry)
    values = [chunks[chunk.number] for chunk in listed]
    if any(value[0] != CHUNK_VERSION for value in values):
        raise StateMismatchError(f"a chunk of a join is not of format version {CHUNK_VERSION}")
    return b"".join([*(value[_VERSION_BYTES:] for value in values), entry[rows_at:]])


class Chunks:
    """The chunks of the keys of one block: which are loaded, and what becomes of them."""

    def __init__(self, table: ValueTable, layout: np.ndarray, told: int) -> None:
        self._table = table
        self._layout = layout
        self._told = told
        #: By position of the key; keys without chunks are not there.
        self.keys: dict[int, ChunkedKey] = {}
        self._puts: list[tuple[bytes, bytes]] = []
        self._deletes: list[bytes] = []

    def assemble(
        self, position: int, entry: bytes, state_key: bytes, sides: int, watermark_ms: int | None
    ) -> tuple[bytes, int]:
        """An entry with chunks as one of version 1, with the rows of those that are needed first.

        Args:
            position: of the key.
            entry: as stored.
            state_key: of the entry.
            sides: bit s: rows of side s are needed.
            watermark_ms: only chunks that may have rows to tell of at this watermark are needed, whatever their side;
                None: all of the sides.

        Returns:
            The entry, and how many bytes of it are of chunks.

        Raises:
            StateError: a chunk is not there.
            StateMismatchError: a chunk is of another version.
        """
        chunks, rows_at = read_directory(entry)
        if watermark_ms is None:
            needed = [chunk for chunk in chunks if sides >> chunk.side & 1]
        else:
            needed = [chunk for chunk in chunks if chunk.due <= watermark_ms]
        values = self._table.get_stored([chunk_key(state_key, chunk.number) for chunk in needed])
        key = self.keys[position] = ChunkedKey(chunks)
        parts: list[bytes | memoryview] = [entry[:_COUNT_AT], bytes(4)]
        at = kernels.HEAD_BYTES
        for chunk, value in zip(needed, values, strict=True):
            if value is None:
                raise StateError(f"chunk {chunk.number} of the rows of a join is not in the store")
            if value[0] != CHUNK_VERSION:
                raise StateMismatchError(
                    f"a chunk of a join has format version {value[0]}, this program reads {CHUNK_VERSION}"
                )
            key.loaded[chunk.number] = value
            chunk.start = at
            parts.append(memoryview(value)[_VERSION_BYTES:])
            at += len(value) - _VERSION_BYTES
        parts.append(memoryview(entry)[rows_at:])
        return b"".join(parts), at - kernels.HEAD_BYTES

    def rows_not_loaded(self, side: int, keys: int) -> np.ndarray:
        """Rows of a side in chunks that are not loaded, for each of so many keys; int64."""
        counts = np.zeros(keys, dtype=np.int64)
        for position, key in self.keys.items():
            missing = (chunk for chunk in key.chunks if chunk.number not in key.loaded)
            counts[position] = sum(chunk.rows for chunk in missing if chunk.side == side)
        return counts

    def settle(
        self, position: int, state_key: bytes, data: np.ndarray, entry_at: int, watermark_ms: int
    ) -> tuple[int, int, int]:
        """Work out what becomes of the chunks of a key whose entry is rewritten.

        Args:
            position: of the key.
            state_key: of its entry.
            data: the block's.
            entry_at: where the key's part of it begins.
            watermark_ms: rows that can match no more at it may go.

        Returns:
            How many chunks stay, when the first row of them is due of which it is told, and when all of them are.
        """
        key = self.keys[position]
        stay: list[Chunk] = []
        for chunk in key.chunks:
            kept = self._settled(chunk, key.loaded.get(chunk.number), state_key, data, entry_at, watermark_ms)
            if kept is None:
                self._deletes.append(chunk_key(state_key, chunk.number))
            else:
                stay.append(kept)
        key.chunks = stay
        first = min((chunk.due for chunk in stay), default=NEVER_MS)
        last = max((chunk.until for chunk in stay), default=-NEVER_MS)
        return len(stay), first, last + 1 if last < NEVER_MS else NEVER_MS

    def _settled(
        self,
        chunk: Chunk,
        value: bytes | None,
        state_key: bytes,
        data: np.ndarray,
        entry_at: int,
        watermark_ms: int,
    ) -> Chunk | None:
        """The chunk as it is from now on; None: it goes."""
        if value is None:
            # What is told of it is not told yet.
            return None if chunk.until < watermark_ms < chunk.due else chunk
        first = entry_at + chunk.start
        rows = data[first : first + len(value) - _VERSION_BYTES]
        if (
            chunk.until >= watermark_ms
            and chunk.due > watermark_ms
            and rows.tobytes() == value[_VERSION_BYTES:]
        ):
            return chunk
        return self._put(chunk.number, chunk.side, state_key, rows, watermark_ms)

    def _put(
        self, number: int, side: int, state_key: bytes, rows: np.ndarray, watermark_ms: int
    ) -> Chunk | None:
        """Write a chunk of the rows of a side that stay; None: none does."""
        out, facts = self._rows_of(rows, side, watermark_ms)
        size, count, until, due = facts.tolist()
        if not count:
            return None
        self._puts.append((chunk_key(state_key, number), bytes([CHUNK_VERSION]) + out[:size].tobytes()))
        return Chunk(number, side, count, size, until, due)

    def _rows_of(self, rows: np.ndarray, side: int, watermark_ms: int) -> tuple[np.ndarray, np.ndarray]:
        out, facts = np.empty(len(rows) + 8, dtype=np.uint8), np.empty(4, dtype=np.int64)
        # Kernels read eight bytes at a time.
        padded = np.concatenate([rows, np.zeros(8, dtype=np.uint8)])
        kernels.rows_that_stay(padded, 0, len(rows), side, self._layout, self._told, watermark_ms, out, facts)
        return out, facts

    def sealed(self, position: int, state_key: bytes, entry: bytes, watermark_ms: int) -> bytes:
        """An entry of version 1 as it is to be written: with its chunks, many rows of a side in a new one."""
        key = self.keys.get(position)
        if len(entry) - kernels.HEAD_BYTES >= SEAL_BYTES:
            key = self.keys.setdefault(position, ChunkedKey([]))
            rows = np.frombuffer(entry, dtype=np.uint8)[kernels.HEAD_BYTES :]
            parts = [entry[: kernels.HEAD_BYTES]]
            for side in range(len(self._layout)):
                out, facts = self._rows_of(rows, side, watermark_ms)
                size = int(facts[0])
                if size * len(self._layout) >= SEAL_BYTES:
                    chunk = self._put(key.next_number, side, state_key, out[:size], watermark_ms)
                    assert chunk is not None
                    key.next_number += 1
                    key.chunks.append(chunk)
                else:
                    parts.append(out[:size].tobytes())
            entry = b"".join(parts)
        return with_directory(entry, key.chunks) if key is not None else entry

    def drain(self) -> tuple[list[tuple[bytes, bytes]], list[bytes]]:
        """Chunks to write and to delete."""
        puts, self._puts = self._puts, []
        deletes, self._deletes = self._deletes, []
        return puts, deletes
