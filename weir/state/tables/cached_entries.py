"""What a table has cached, on its way to a new owner: accumulators as contiguous arrays, values as bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from weir.errors import HandshakeError
from weir.state.tables.cells.accumulators import presence_bytes


@dataclass(frozen=True, slots=True)
class CachedEntries:
    """What a table of cells had cached of some keys when they were given away; their store had the same.

    On the wire each array is its bytes, little endian. Nothing is done per key in Python.
    """

    #: Number of the operator's state in the store.
    state_id: int
    #: uint64, shape (keys,).
    hashes: np.ndarray
    #: uint8: the keys' bytes, one after the other.
    key_data: np.ndarray
    #: int32, shape (keys,).
    key_lengths: np.ndarray
    #: int64, shape (keys, cells).
    cells: np.ndarray
    #: uint8, shape (keys, presence bytes), see ``weir.state.tables.cells.accumulators``.
    presence: np.ndarray

    def __len__(self) -> int:
        return len(self.hashes)

    @property
    def key_offsets(self) -> np.ndarray:
        """int64, shape (keys + 1,): the key of row i is ``key_data[offsets[i]:offsets[i + 1]]``."""
        offsets = np.zeros(len(self) + 1, dtype=np.int64)
        np.cumsum(self.key_lengths, out=offsets[1:])
        return offsets

    @property
    def size_bytes(self) -> int:
        """Bytes of the arrays."""
        arrays = (self.hashes, self.key_data, self.key_lengths, self.cells, self.presence)
        return sum(array.nbytes for array in arrays)

    def pieces(self, keys_max: int, bytes_max: int) -> Iterator[CachedEntries]:
        """The same in parts of at most this many keys, and about this many bytes of keys; they share the arrays."""
        offsets = self.key_offsets
        mean_bytes = max(1, len(self.key_data) // max(1, len(self)))
        keys_max = max(1, min(keys_max, bytes_max // mean_bytes))
        for start in range(0, len(self), keys_max):
            stop = min(start + keys_max, len(self))
            yield CachedEntries(
                self.state_id,
                self.hashes[start:stop],
                self.key_data[offsets[start] : offsets[stop]],
                self.key_lengths[start:stop],
                self.cells[start:stop],
                self.presence[start:stop],
            )


#: Entries of one piece of values: entering one takes about 1 µs.
_VALUES_MAX = 2_000


@dataclass(frozen=True, slots=True)
class CachedValues:
    """What a table of values had cached of some keys when they were given away; their store had the same.

    On the wire keys and values are their bytes, one after the other, with int32 lengths, little endian.
    """

    #: Number of the state in the store.
    state_id: int
    #: State keys, which begin with their key group; those used last come last.
    keys: Sequence[bytes]
    #: Value of each key; None: the store has none.
    values: Sequence[bytes | None]

    def __len__(self) -> int:
        return len(self.keys)

    @property
    def size_bytes(self) -> int:
        """Bytes of keys and values."""
        return sum(map(len, self.keys)) + sum(map(len, filter(None, self.values)))

    def pieces(self, keys_max: int, bytes_max: int) -> Iterator[CachedValues]:
        """The same in parts of at most this many keys and bytes; a single entry may be larger."""
        keys_max = min(keys_max, _VALUES_MAX)
        start = size = 0
        for index, (key, value) in enumerate(zip(self.keys, self.values, strict=True)):
            entry_bytes = len(key) + len(value or b"")
            if index > start and (index - start >= keys_max or size + entry_bytes > bytes_max):
                yield self._part(start, index)
                start, size = index, 0
            size += entry_bytes
        if start < len(self):
            yield self._part(start, len(self))

    def _part(self, start: int, stop: int) -> CachedValues:
        return CachedValues(self.state_id, self.keys[start:stop], self.values[start:stop])


#: What one table gives.
CachedPart = CachedEntries | CachedValues


@dataclass(frozen=True, slots=True)
class CachedChanges:
    """What a new owner still needs of the old one's cache at a handover."""

    entries: Sequence[CachedPart]
    #: The groups of which it then has everything that is worth having.
    groups: Sequence[int]
    #: Those of them whose earlier copy, if there is one, is void.
    anew: Sequence[int]


def decode_entries(
    state_id: int,
    cell_count: int,
    *,
    hashes: bytes,
    key_data: bytes,
    key_lengths: bytes,
    cells: bytes,
    presence: bytes,
) -> CachedEntries:
    """Entries from the bytes of their arrays.

    Raises:
        HandshakeError: the arrays do not fit together.
    """
    keys = len(hashes) // 8
    sizes = (len(hashes), len(key_lengths), len(cells), len(presence))
    width = presence_bytes(cell_count)
    if cell_count < 1 or sizes != (8 * keys, 4 * keys, 8 * keys * cell_count, keys * width):
        raise HandshakeError("cached state came with arrays that do not fit together")
    lengths = np.frombuffer(key_lengths, dtype="<i4")
    if keys and (int(lengths.min()) < 0 or int(lengths.sum(dtype=np.int64)) != len(key_data)):
        raise HandshakeError("cached state came with keys of other lengths than it says")
    return CachedEntries(
        state_id,
        np.frombuffer(hashes, dtype="<u8"),
        np.frombuffer(key_data, dtype=np.uint8),
        lengths,
        np.frombuffer(cells, dtype="<i8").reshape(keys, cell_count),
        np.frombuffer(presence, dtype=np.uint8).reshape(keys, width),
    )


def decode_cached_values(
    state_id: int, *, key_data: bytes, key_lengths: bytes, value_data: bytes, value_lengths: bytes
) -> CachedValues:
    """Values from the bytes of their arrays; a length of -1 stands for no value.

    Raises:
        HandshakeError: the arrays do not fit together.
    """
    if len(key_lengths) % 4 or len(value_lengths) != len(key_lengths):
        raise HandshakeError("cached state came with arrays that do not fit together")
    lengths = np.frombuffer(value_lengths, dtype="<i4")
    keys = _split(key_data, np.frombuffer(key_lengths, dtype="<i4"))
    values: list[bytes | None] = list(_split(value_data, np.maximum(lengths, 0)))
    for index in np.flatnonzero(lengths < 0).tolist():
        values[index] = None
    return CachedValues(state_id, keys, values)


def _split(data: bytes, lengths: np.ndarray) -> list[bytes]:
    offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    if (len(lengths) and int(lengths.min()) < 0) or int(offsets[-1]) != len(data):
        raise HandshakeError("cached state came with keys or values of other lengths than it says")
    # Arrow makes a list of bytes in 20 ns an entry.
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    listed: list[bytes] = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(lengths), buffers
    ).to_pylist()
    return listed
